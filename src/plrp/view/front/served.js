// The page of `plrp view`: a photograph, sequence or text goes to the server, bundles come back line by line.

const TAKES = {
  photograph: { drop: "Choose a photograph", accept: "image/*" },
  sequence: { drop: "Choose a FASTA file", accept: ".fa,.fasta,.txt", paste: "A sequence", example: "ACGT… or FASTA", wanted: "Class" },
  text: { paste: "A text", example: "The capital of France is", wanted: "Answer" },
};

/** Sends inputs, and calls `show` with each bundle's facts and arrays, `add` with patches of a layer. A new one ends the work on the last. */
export class Sender {
  constructor(elements, takes, show, add) {
    Object.assign(this, elements, { show, add });
    this.token = new URLSearchParams(location.search).get("token") ?? "";
    this.input = null;
    this.session = null; // of the input that is shown
    this.request = null;
    this.#dress(TAKES[takes]);
    this.file.addEventListener("change", () => this.send(this.file.files[0]));
    this.paste.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = this.pasted.value;
      if (text.trim()) this.send(new File([text], "pasted", { type: "text/plain" }));
    });
    this.pasted.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.paste.requestSubmit();
    });
    this.wanted.addEventListener("change", () => this.send(this.input, this.session));
    const body = document.body;
    body.addEventListener("dragover", (event) => { event.preventDefault(); body.classList.add("dropping"); });
    body.addEventListener("dragleave", () => body.classList.remove("dropping"));
    body.addEventListener("drop", (event) => {
      event.preventDefault();
      body.classList.remove("dropping");
      this.send(event.dataTransfer.files[0]);
    });
  }

  /** The form for what the model takes. */
  #dress({ drop, accept, paste, example, wanted }) {
    this.drop.hidden = !drop;
    if (drop) [this.dropText.textContent, this.file.accept] = [drop, accept];
    this.paste.hidden = !paste;
    if (!paste) return;
    this.pasteText.textContent = paste;
    this.pasted.placeholder = example;
    this.wantedText.textContent = wanted;
  }

  /** Sends an input; or, with its session, asks for another target of one that the server still has. */
  async send(input, session = null) {
    if (!input) return;
    this.input = input;
    this.request?.abort();
    const request = (this.request = new AbortController());
    this.#say("Sending …");
    try {
      const query = new URLSearchParams({ name: input.name, target: this.wanted.value, ...(session && { session }) });
      const options = { method: "POST", body: session ? "" : input, headers: { "x-plrp-token": this.token }, signal: request.signal };
      const answer = await fetch(`explain?${query}`, options);
      if (!answer.ok) return this.#fail((await answer.json()).problem);
      for await (const line of linesOf(answer.body)) await this.#take(line);
    } catch (error) {
      if (!request.signal.aborted) this.#fail(`The server does not answer (${error.message}): is plrp view still running?`);
    }
  }

  /** Asks for one more thing about the input that is shown; null where the server refuses. */
  async ask(what, wanted) {
    try {
      const body = JSON.stringify({ session: this.session, ...wanted });
      const answer = await (await fetch(what, { method: "POST", body, headers: { "x-plrp-token": this.token } })).json();
      if (!answer.problem) return answer;
      this.#fail(answer.problem);
    } catch (error) {
      this.#fail(`The server does not answer (${error.message}): is plrp view still running?`);
    }
    return null;
  }

  async #take(line) {
    if (line.problem) return this.#fail(line.problem);
    if (line.exemplars) return this.add(line.layer, line.exemplars);
    if (line.waiting) return this.#say("Waiting for other visitors …");
    if (line.of) return this.#say(line.done === line.of ? "" : `${line.done} of ${line.of} ${line.what}`, line.done / line.of);
    this.session = line.facts.session;
    await this.show(line.facts, line.arrays);
    if (line.facts.flow) this.#say("");
  }

  #say(text, share = null) {
    this.problem.hidden = true;
    this.text.textContent = text;
    this.bar.hidden = share === null || share === 1;
    this.bar.value = share ?? 0;
  }

  #fail(text) {
    this.#say("");
    this.problem.textContent = text;
    this.problem.hidden = false;
  }
}

/** The lines of a stream, each parsed as JSON. */
async function* linesOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}
