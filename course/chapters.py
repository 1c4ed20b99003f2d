"""The map of the course: all chapters by number, written or planned. Every reference to a chapter is checked against it.

What does not fit one sitting goes on under the same number with a letter.
"""

CHAPTERS = {
    "00": "setup",
    "01": "tokenizer",
    "02": "corpus",
    "03": "data",
    "04": "attention",
    "05": "gpt",
    "06": "pretrained",
    "07": "training",
    "08": "sampling",
    "09": "measuring",
    "10": "precision",
    "11": "compile",
    "12": "flash attention",
    "13": "nice numbers",
    "14": "ladder",
    "15": "recipe",
    "16": "real text",
    "16b": "preparing",
    "17": "trainer",
    "17b": "checkpoints",
    "17c": "long run",
    "18": "evaluation",
    "18b": "hellaswag",
    "19": "fine-tuning",
    "20": "ddp",
    "20b": "many machines",
    "21": "sharding",
    "22": "planner",
    "23": "kernels",
    "24": "llama",
    "25": "speedrun",
}
