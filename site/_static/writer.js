// The course's first model, alive in the page: chapter 01's tokenizer, chapter 05's GPT-2 with chapter 08's cache, and
// chapter 08's sampling, in plain JavaScript; below them the widget. The weights are in first_model.js, which is loaded
// when somebody uses the widget. It has to work from a folder, too, where a page may load scripts and nothing else.
const writer = (() => {
  "use strict";

  // ---- The tokenizer: nanogpt/tokenizer.py. A string of bytes has one character, 0 to 255, for each byte.

  const toBytes = (text) => String.fromCharCode(...new TextEncoder().encode(text));
  const fromBytes = (bytes) => Uint8Array.from(bytes, (char) => char.charCodeAt(0));

  class Tokenizer {
    constructor({ vocab, special, pattern }) {
      this.tokens = [...vocab, ...special];
      this.ranks = new Map(vocab.map((token, id) => [token, id]));
      this.eot = vocab.length + special.indexOf("<|endoftext|>");
      // Python's \s is Unicode's white space; JavaScript's is not quite.
      const unicode = pattern.replaceAll("\\s", "\\p{White_Space}").replaceAll("\\S", "\\P{White_Space}");
      this.pattern = new RegExp(unicode, "gu");
    }

    encode(text) {
      return (text.match(this.pattern) ?? []).flatMap((chunk) => this.mergeChunk(toBytes(chunk)));
    }

    /** The ids of one chunk: again and again the pair with the lowest rank becomes one piece. */
    mergeChunk(bytes) {
      const pieces = [...bytes];
      for (;;) {
        let lowest = Infinity;
        for (let i = 0; i + 1 < pieces.length; i++) {
          lowest = Math.min(lowest, this.ranks.get(pieces[i] + pieces[i + 1]) ?? Infinity);
        }
        if (lowest === Infinity) return pieces.map((piece) => this.ranks.get(piece));
        for (let i = 0; i + 1 < pieces.length; i++) {
          if (this.ranks.get(pieces[i] + pieces[i + 1]) === lowest) pieces.splice(i, 2, this.tokens[lowest]);
        }
      }
    }

    decode(ids) {
      return new TextDecoder().decode(fromBytes(ids.map((id) => this.tokens[id]).join("")));
    }
  }

  // ---- The model: nanogpt/model.py. It reads one token at a time, and keeps the keys and values of those before it.

  /** Base64 of float16 numbers as float32: sign, 5 bits of exponent, 10 of fraction. */
  function floats(base64) {
    const bits = new Uint16Array(fromBytes(atob(base64)).buffer);
    return Float32Array.from(bits, (half) => {
      const sign = half >> 15 ? -1 : 1;
      const exponent = (half >> 10) & 31;
      const fraction = (half & 1023) / 1024;
      return exponent ? sign * (1 + fraction) * 2 ** (exponent - 15) : sign * fraction * 2 ** -14;
    });
  }

  /** W x + b, where W has a row for each output. */
  function linear(W, x, b) {
    const y = new Float32Array(W.length / x.length);
    for (let row = 0; row < y.length; row++) {
      let sum = b ? b[row] : 0;
      for (let i = 0, at = row * x.length; i < x.length; i++, at++) sum += W[at] * x[i];
      y[row] = sum;
    }
    return y;
  }

  function layerNorm(x, weight, bias) {
    const mean = x.reduce((sum, value) => sum + value, 0) / x.length;
    const variance = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.length;
    return x.map((value, i) => ((value - mean) / Math.sqrt(variance + 1e-5)) * weight[i] + bias[i]);
  }

  const gelu = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
  const add = (x, y) => x.map((value, i) => value + y[i]);

  function softmax(logits) {
    const largest = Math.max(...logits);
    const powers = Array.from(logits, (logit) => Math.exp(logit - largest));
    const sum = powers.reduce((total, power) => total + power, 0);
    return powers.map((power) => power / sum);
  }

  class GPT {
    constructor({ config, weights }) {
      this.config = config;
      this.weights = Object.fromEntries(Object.entries(weights).map(([name, text]) => [name, floats(text)]));
      const size = config.block_size * config.n_embd;
      const room = () => Array.from({ length: config.n_layer }, () => new Float32Array(size));
      [this.keys, this.values, this.kept] = [room(), room(), []];
    }

    /** The logits of the token after ids, at most block_size of them. It reads only what the cache does not have. */
    logits(ids) {
      let t = 0;
      while (t < ids.length - 1 && ids[t] === this.kept[t]) t++;
      let x;
      for (; t < ids.length; t++) x = this.read(ids[t], t);
      this.kept = [...ids];
      return linear(this.weights["transformer.wte.weight"], this.norm("transformer.ln_f", x));
    }

    /** What the last block makes of token id at position t: n_embd numbers. */
    read(id, t) {
      const C = this.config.n_embd;
      const row = (name, i) => this.weights[`transformer.${name}.weight`].subarray(i * C, (i + 1) * C);
      let x = add(row("wte", id), row("wpe", t));
      for (let layer = 0; layer < this.config.n_layer; layer++) {
        const block = `transformer.h.${layer}`;
        x = add(x, this.attention(layer, t, this.norm(`${block}.ln_1`, x)));
        const wide = this.linear(`${block}.mlp.c_fc`, this.norm(`${block}.ln_2`, x)).map(gelu);
        x = add(x, this.linear(`${block}.mlp.c_proj`, wide));
      }
      return x;
    }

    attention(layer, t, x) {
      const { n_embd: C, n_head } = this.config;
      const d = C / n_head;
      const [keys, values] = [this.keys[layer], this.values[layer]];
      const qkv = this.linear(`transformer.h.${layer}.attn.c_attn`, x);
      keys.set(qkv.subarray(C, 2 * C), t * C);
      values.set(qkv.subarray(2 * C), t * C);
      const y = new Float32Array(C);
      for (let head = 0; head < C; head += d) { // where each head's numbers begin
        const scores = new Float32Array(t + 1);
        for (let s = 0; s <= t; s++) {
          for (let i = head; i < head + d; i++) scores[s] += (qkv[i] * keys[s * C + i]) / Math.sqrt(d);
        }
        softmax(scores).forEach((weight, s) => {
          for (let i = head; i < head + d; i++) y[i] += weight * values[s * C + i];
        });
      }
      return this.linear(`transformer.h.${layer}.attn.c_proj`, y);
    }

    linear(name, x) {
      return linear(this.weights[`${name}.weight`], x, this.weights[`${name}.bias`]);
    }

    norm(name, x) {
      return layerNorm(x, this.weights[`${name}.weight`], this.weights[`${name}.bias`]);
    }
  }

  // ---- Sampling: nanogpt/sampling.py. Temperature, then top-k, then top-p.

  const sorted = (numbers) => [...numbers].sort((a, b) => b - a);
  const keepFrom = (smallest, logits) => logits.map((logit) => (logit < smallest ? -Infinity : logit));

  function keepTopP(logits, p) {
    const ranked = sorted(logits);
    const probs = softmax(ranked);
    let last = 0;
    for (let mass = probs[0]; mass < p && last + 1 < probs.length; mass += probs[last]) last++;
    return keepFrom(ranked[last], logits);
  }

  function tokenProbs(logits, { temperature, topK, topP }) {
    const largest = Math.max(...logits);
    if (temperature === 0) {
      const likeliest = logits.indexOf(largest);
      return Array.from(logits, (_, id) => Number(id === likeliest));
    }
    let scaled = Array.from(logits, (logit) => (logit - largest) / temperature);
    scaled = keepFrom(sorted(scaled)[topK - 1], scaled);
    return softmax(topP < 1 ? keepTopP(scaled, topP) : scaled);
  }

  /** One id: a random number falls on a ruler on which every token has a piece as long as its probability. */
  function draw(probs) {
    let left = Math.random() * probs.reduce((sum, p) => sum + p, 0);
    const id = probs.findIndex((p) => (left -= p) < 0);
    return id < 0 ? probs.findLastIndex((p) => p > 0) : id; // rounding may leave a rest
  }

  // ---- Loading: once, however many ask.

  const folder = document.currentScript.src;
  let loading;

  function load() {
    loading ??= new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = new URL("first_model.js", folder);
      script.onload = () => done({ gpt: new GPT(firstModel), tokenizer: new Tokenizer(firstModel.tokenizer) });
      script.onerror = () => {
        loading = undefined; // the next press tries again
        failed(new Error("The model could not be loaded. Are you offline?"));
      };
      document.head.append(script);
    });
    return loading;
  }

  // ---- The widget.

  const BARS = 16;
  const MOST = 200; // tokens of a story that does not end
  const PAUSE = 70; // milliseconds between two tokens, so that one can follow
  const KNOBS = { temperature: [0.8, 0, 3, 0.1], "top k": [8, 1, 50, 1], "top p": [0.95, 0.05, 1, 0.05] };
  const LOOK = `
    <form autocomplete="off">
      <label class="beginning"><span>beginning</span><textarea spellcheck="false"></textarea></label>
      ${Object.entries(KNOBS).map(([name, [value, min, max, step]]) => `<label><span>${name}</span>
        <input type="range" min="${min}" max="${max}" step="${step}" value="${value}"><output>${value}</output></label>`).join("")}
      <p><button>Write</button> <span role="status"></span></p>
    </form>
    <figure hidden><figcaption></figcaption><ol aria-label="The likeliest next tokens"></ol></figure>
    <p class="written" aria-live="polite"></p>`;

  const percent = (p) => (p > 0 && p < 0.005 ? "< 1%" : `${Math.round(100 * p)}%`);

  class Widget {
    constructor(place) {
      place.insertAdjacentHTML("beforeend", LOOK);
      place.hidden = false;
      const find = (selector) => place.querySelector(selector);
      [this.field, this.button, this.status, this.written] = ["textarea", "button", "[role=status]", ".written"].map(find);
      [this.figure, this.words, this.bars] = ["figure", "figcaption", "ol"].map(find);
      this.knobs = [...place.querySelectorAll("input")];
      this.run = 0; // the number of the story that is being written; with another number it stops
      this.field.value = place.dataset.beginning;
      this.field.rows = Math.max(2, Math.ceil(this.field.value.length / 60));
      this.field.addEventListener("input", () => this.look());
      for (const knob of this.knobs) knob.addEventListener("input", () => this.turn(knob));
      find("form").addEventListener("submit", (event) => {
        event.preventDefault();
        if (this.isWriting) this.stop();
        else this.write();
      });
    }

    /** The text without a space at its end, which would be a token that no story has; and its ids. */
    beginning() {
      const text = this.field.value.trimEnd();
      return { text, ids: [this.tokenizer.eot, ...this.tokenizer.encode(text)] };
    }

    /** Show what may follow the beginning; false if the model cannot be loaded, or is asked for something else by now. */
    async look() {
      this.stop();
      const run = this.run;
      this.written.textContent = "";
      try {
        if (!this.gpt) this.status.textContent = "Loading the model, about 1 MB …";
        Object.assign(this, await load());
        this.status.textContent = "";
      } catch (error) {
        this.status.textContent = error.message;
        return false;
      }
      if (run !== this.run) return false;
      this.logits = this.gpt.logits(this.beginning().ids.slice(-this.gpt.config.block_size));
      this.show();
      return true;
    }

    turn(knob) {
      knob.nextElementSibling.value = knob.value;
      if (!this.gpt) this.look();
      else if (!this.isWriting) this.show();
    }

    setWriting(isWriting) {
      this.isWriting = isWriting;
      this.button.textContent = isWriting ? "Stop" : "Write";
      this.written.setAttribute("aria-busy", isWriting); // a screen reader waits for the end, then reads the story
    }

    stop() {
      this.run++;
      this.setWriting(false);
    }

    async write() {
      if (!(await this.look())) return;
      const run = this.run;
      this.setWriting(true);
      const { text, ids } = this.beginning();
      const story = document.createElement("span");
      this.written.replaceChildren(text, story);
      const decoder = new TextDecoder(); // shows no half of a character
      const { block_size } = this.gpt.config;
      let first = Math.max(0, ids.length - block_size);
      for (let n = 0; n < MOST && run === this.run; n++) {
        if (ids.length - first > block_size) first = ids.length - block_size / 2; // a full window keeps its last half
        this.logits = this.gpt.logits(ids.slice(first));
        const id = draw(tokenProbs(this.logits, this.options()));
        this.show(id);
        if (id === this.tokenizer.eot) {
          this.status.textContent = "The end.";
          break;
        }
        ids.push(id);
        story.textContent += decoder.decode(fromBytes(this.tokenizer.tokens[id]), { stream: true });
        await new Promise((done) => setTimeout(done, PAUSE));
      }
      if (run === this.run) this.stop();
    }

    options() {
      const [temperature, topK, topP] = this.knobs.map((knob) => Number(knob.value));
      return { temperature, topK, topP };
    }

    /** Pale bars for the model's probabilities, thin ones for those that are drawn from; and that in words. */
    show(chosen) {
      const plain = softmax(this.logits);
      const drawn = tokenProbs(this.logits, this.options());
      const likeliest = [...plain.keys()].sort((a, b) => plain[b] - plain[a]).slice(0, BARS);
      this.bars.innerHTML = "<li><code></code><i></i><span></span></li>".repeat(BARS);
      likeliest.forEach((id, rank) => {
        const row = this.bars.children[rank];
        const [name, bar, number] = row.children;
        name.textContent = JSON.stringify(this.tokenizer.decode([id]));
        bar.style.cssText = `--model: ${plain[id]}; --drawn: ${drawn[id]}`;
        number.textContent = percent(drawn[id]);
        row.className = id === chosen ? "chosen" : drawn[id] ? "" : "cut";
      });
      const left = drawn.filter((p) => p > 0).length;
      this.words.textContent = `Next token: what the model says (pale), and what is drawn from (thin, ${left} of ${drawn.length}).`;
      this.figure.hidden = false;
    }
  }

  for (const place of document.querySelectorAll(".writer")) {
    const widget = new Widget(place);
    const picture = place.previousElementSibling?.querySelector(".cell_output");
    if (!picture) continue;
    picture.classList.add("replaced"); // what it shows is shown here, as soon as one sees it
    new IntersectionObserver(([entry], observer) => {
      if (!entry.isIntersecting) return;
      observer.disconnect();
      widget.look();
    }).observe(place);
  }

  return { load, tokenProbs };
})();
