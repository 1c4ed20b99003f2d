"""From a configuration to a run: data, model and optimizer made, and a checkpoint gone on with.

Exported from notebooks/17d_assembly.ipynb, grown by notebooks/19c_fine_tuning_runs.ipynb,
notebooks/20a_many_processes.ipynb, notebooks/21d_layouts.ipynb and notebooks/24b_llama_runs.ipynb.
"""

import shutil
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from nanogpt.checkpoint import is_in_parts, latest, repair
from nanogpt.checkpoint import load as load_state
from nanogpt.config import Config, Data, config_dict, keys
from nanogpt.data import BatchStream, DocumentStream
from nanogpt.device import pick_device, seed_everything
from nanogpt.distributed import Ranks
from nanogpt.labs.corpora.mixture import MixedStream
from nanogpt.labs.corpora.sources import KINDS, blocks_in, cut_files, find_files
from nanogpt.labs.llama.runs import given_of, new_of
from nanogpt.labs.long_run.given import given_model
from nanogpt.labs.long_run.together import first_alone, refuse_other_runs
from nanogpt.labs.long_run.training import Training
from nanogpt.labs.parallel.laid_out import (
    compile_blocks,
    fill,
    first_weights,
    is_laid_out,
    lay_out,
    made_in_parts,
    optimizer_for,
    saved_weights,
)
from nanogpt.labs.tuning.answers import only_answers
from nanogpt.lora import add_lora, load_adapter, lora_parameters
from nanogpt.model import GPT
from nanogpt.precision import LossScaler, why_not
from nanogpt.prepare import LEARN, prepare_text
from nanogpt.shards import load_manifest, open_shards, read_shard
from nanogpt.stories import ensure_corpus
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init

LARGE = 1 << 28  # bytes of a text that are not read as a whole


def make_data(data: Data) -> None:
    """Make the shards of data.dir from data.source: the course's stories, or a text with a tokenizer of its own."""
    source, folder, tokenizer = Path(data.source), Path(data.dir), data.tokenizer
    if data.source == "stories":
        ensure_corpus(folder)
    elif source.is_file() and KINDS.get(source.suffix, "text") == "text" and source.stat().st_size < LARGE:
        prepare_text(source, folder, tokenizer, data.val, data.paragraphs)
    else:
        if isinstance(tokenizer, int):
            spans = next(cut_files(find_files(source), LEARN, data.paragraphs))
            texts = (text for span in spans for _, block in blocks_in(span, 1 << 20) for text in block)
            BPETokenizer.train(texts, tokenizer).save(tokenizer := folder / "tokenizer.json")
        lab = import_module("nanogpt.labs.corpora.prepare")
        lab.prepare(source, folder, tokenizer, data.val, 0.0, data.paragraphs)


def ensure_data(data: Data) -> dict:
    """The manifest of data.dir, whose shards are made first where there are none."""
    if not Path(data.dir, "manifest.json").exists():
        if data.source is None:
            raise FileNotFoundError(
                f"data.dir={data.dir} has no shards; `python -m nanogpt prepare` makes some"
            )
        make_data(data)
    return load_manifest(data.dir)


def tokenizer_of(data: Data, manifest: dict) -> BPETokenizer | None:
    """The tokenizer that made the shards, or None if it is neither beside them nor named."""
    for name in (Path(data.dir) / "tokenizer.json", data.tokenizer):
        with suppress(OSError, ValueError, TypeError):
            found = BPETokenizer.gpt2() if name == "gpt2" else BPETokenizer.load(name)
            if found.fingerprint == manifest["fingerprint"]:
                return found


def batches_of(config: Config, device: torch.device, rank: int = 0, world_size: int = 1) -> BatchStream:
    """Batches of data.dir's training shards, or of the folders of data.mix. ValueError where those cannot be mixed."""
    data, B = config.data, config.train.micro_batch
    kind = DocumentStream if data.documents else BatchStream
    how = {"T": config.model.block_size, "seed": config.run.seed, "device": device}
    if data.mix is None:
        return kind(open_shards(data.dir, "train"), B, rank=rank, world_size=world_size, **how)
    if data.dir not in data.mix:
        raise ValueError(f"data.mix gives data.dir={data.dir} no weight; it has {', '.join(data.mix)}")
    words = load_manifest(data.dir)["fingerprint"]
    streams = [kind(open_shards(folder, "train", words), 1, **how) for folder in data.mix]
    return MixedStream(streams, list(data.mix.values()), B, rank, world_size)


def stream_of(config: Config, ranks: Ranks) -> BatchStream:
    """The run's batches; several ranks take the micro-batches in turn, so that all together read what one would."""
    dealt = {"rank": ranks.rank, "world_size": ranks.size}
    return batches_of(config, ranks.device, **dealt)


def held_out(folder: str, tokens: int) -> list[np.ndarray]:
    """The first so many tokens of the validation shards."""
    held = []
    for path in open_shards(folder, "val"):
        held.append(read_shard(path)[:tokens])
        tokens -= len(held[-1])
    return held


def first_model(config: Config, manifest: dict) -> GPT:
    """The model before its first step: new, or init_from's with this run's dropout and adapters, in float32, on the CPU."""
    lora, generator = config.lora, torch.Generator().manual_seed(config.run.seed)
    if config.init_from is not None:
        model = given_of(config, manifest)
        return add_lora(model, lora.rank, lora.alpha, lora.targets, generator) if lora.rank else model
    if lora.rank:
        raise ValueError(f"lora.rank={lora.rank} adapts trained weights; set init_from to their folder")
    return new_of(config, manifest, generator)


def optimizer_of(config: Config, model: GPT) -> torch.optim.Optimizer:
    """Chapter 15's optimizer, as the configuration has it, for a model in any layout."""
    o, train = config.optim, config.train
    options = {"betas": o.betas, "weight_decay": o.weight_decay, "compiled": train.compile}
    return optimizer_for(model, o.lr, train.dtype, **options)


def marker_of(data: Data, tokenizer: BPETokenizer | None) -> list[int]:
    """The tokens that precede an answer. ValueError if the tokenizer of the shards is not known."""
    if tokenizer is None:
        raise ValueError(f"data.answers_after needs the tokenizer of {data.dir}; set data.tokenizer")
    return tokenizer.encode(data.answers_after)


def begun(config: Config, manifest: dict, model: GPT, stepper, optimizer, stream: BatchStream) -> Training:
    """A run of these parts, before its first step."""
    c, tokenizer = config, tokenizer_of(config.data, manifest)
    if tokenizer is None and c.eval.sample_every + c.eval.hellaswag_every:
        remedy = "name it in data.tokenizer, or set eval.sample_every=0"
        raise ValueError(f"samples need the tokenizer that made {c.data.dir}; {remedy}")
    if c.data.answers_after:
        own = stream.streams[list(c.data.mix).index(c.data.dir)] if c.data.mix else stream
        only_answers(own, marker_of(c.data, tokenizer))
    held = held_out(c.data.dir, c.eval.tokens) if c.eval.every else []
    stepper = torch.compile(stepper) if c.train.compile else stepper
    scaler = LossScaler() if c.train.dtype == "fp16" else None
    seed_everything(c.run.seed)  # last, whatever has drawn numbers before: from now on only dropout does
    device = next(model.parameters()).device
    return Training(c, device, tokenizer, (held, manifest["eot"]), model, stepper, optimizer, stream, scaler)


def first_parts(config: Config, manifest: dict, ranks: Ranks) -> tuple[GPT, Ranks]:
    """As first_model, but a rank has only its parts; and who reads different rows. ValueError for adapters and answers."""
    if config.lora.rank or config.data.answers_after:
        raise ValueError("adapters and answers need a complete model; leave out parallel.shard, parallel.tp")
    if config.init_from is not None:
        given = given_model(config, manifest)
        return made_in_parts(given.config, given.named_parameters(), config, ranks)
    shape = config.model.shape(manifest["vocab_size"])
    weights = first_weights(shape, torch.Generator().manual_seed(config.run.seed))
    model, readers = made_in_parts(shape, weights, config, ranks)
    return scale_init(model), readers


def assemble(config: Config, ranks: Ranks | None = None) -> Training:
    """All that a run needs, before its first step. ranks: those that share each batch; else there is one."""
    ranks = ranks or Ranks(device=pick_device(config.run.device))
    if reason := why_not(config.train.dtype, ranks.device):
        raise ValueError(f"train.dtype: {reason}")
    manifest = first_alone(ranks, ensure_data, config.data)
    if ranks.size > 1 and (config.parallel.shard or config.parallel.tp > 1):
        model, readers = first_parts(config, manifest, ranks)
        stepper = model
    else:
        model = first_model(config, manifest).to(ranks.device)
        stepper, readers = lay_out(model, config, ranks)
    optimizer, stream = optimizer_of(config, model), stream_of(config, readers)
    run = begun(config, manifest, model.train(), stepper, optimizer, stream)
    run.ranks = ranks
    if config.train.compile and is_laid_out(model):
        run.stepper = compile_blocks(model)  # begun's, the complete model compiled, has not been called
    return run


FREE = "run.", "eval.", "train.", "parallel.", "data.dir", "data.source"  # may change on a run's way


FIXED = "run.seed", "train.batch_tokens", "train.dtype"  # though not these


def value_of(config: dict, key: str):
    """What a configuration, as a dictionary, has under a key with dots; the default if it is older than the key."""
    section, _, name = key.rpartition(".")
    for known in (config, config_dict(Config())):
        inner = known.get(section, {}) if section else known
        if name in inner:
            return inner[name]


def compare(config: Config, saved: dict) -> None:
    """ValueError for a key that cannot change within a run; one printed line for those that can, and did."""
    changed = {}
    for key in keys():
        now, then = value_of(config_dict(config), key), value_of(saved, key)
        if now != then:
            changed[key] = f"{key}={now} (was {then})"
    for key, text in changed.items():
        if key in FIXED or not key.startswith(FREE):
            raise ValueError(f"the run in {config.run.dir} cannot go on with {text}; choose another run.dir")
    if changed:
        print("changed since the checkpoint:", ", ".join(changed.values()))


def take_weights(run: Training, folder: Path) -> None:
    """Give the run's model, in any layout, the weights of a checkpoint; of one in parts also the moments."""
    if lora_parameters(run.model):
        load_adapter(run.model, folder)
        return
    if not is_in_parts(folder):
        return fill(run.model, saved_weights(folder))
    if (tp := run.config.parallel.tp) > 1:
        raise ValueError(f"{folder} is in parts, which parallel.tp={tp} cannot read; set 1")
    from nanogpt.fsdp import load_parts  # here: its imports take a second

    load_parts(folder, run.model, run.optimizer)


def clean(folder: Path, step: int) -> dict | None:
    """Remove what a kill has left: half a checkpoint, and lines from the step on; the step's own line, if it was there."""
    for aside in folder.glob(".step_*.tmp"):
        shutil.rmtree(aside)
    return repair(folder / "metrics.jsonl", step)


def resume(config: Config, ranks: Ranks | None = None) -> Training:
    """The run as its newest whole checkpoint has it, or at its beginning; on all ranks alike."""
    folder, ranks = Path(config.run.dir), ranks or Ranks(device=pick_device(config.run.device))
    found = latest(folder)
    if found:
        state = load_state(found)
        compare(config, state["config"])
    run = assemble(config, ranks)
    refuse_other_runs(ranks, config, run.stream, str(found))
    if found:
        take_weights(run, found)
        run.load_state_dict(state)
        run.kept = found
        print(f"going on after step {run.step}, from {found}")
    if ranks.rank == 0:
        run.record = clean(folder, run.step) or run.record
    return run
