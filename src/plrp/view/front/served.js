// The page of `plrp view`: a photograph goes to the server, bundles come back line by line.

/** Sends photographs, and calls `show` with each bundle's facts and arrays. A new one ends the work on the last. */
export class Sender {
  constructor(elements, show) {
    Object.assign(this, elements);
    this.show = show;
    this.token = new URLSearchParams(location.search).get("token") ?? "";
    this.photograph = null;
    this.request = null;
    this.file.addEventListener("change", () => this.send(this.file.files[0]));
    this.wanted.addEventListener("change", () => this.send(this.photograph));
    const body = document.body;
    body.addEventListener("dragover", (event) => { event.preventDefault(); body.classList.add("dropping"); });
    body.addEventListener("dragleave", () => body.classList.remove("dropping"));
    body.addEventListener("drop", (event) => {
      event.preventDefault();
      body.classList.remove("dropping");
      this.send(event.dataTransfer.files[0]);
    });
  }

  async send(photograph) {
    if (!photograph) return;
    this.photograph = photograph;
    this.request?.abort();
    const request = (this.request = new AbortController());
    this.#say("Sending …");
    try {
      const query = new URLSearchParams({ name: photograph.name, target: this.wanted.value.trim() });
      const options = { method: "POST", body: photograph, headers: { "x-plrp-token": this.token }, signal: request.signal };
      const answer = await fetch(`explain?${query}`, options);
      if (!answer.ok) return this.#fail((await answer.json()).problem);
      for await (const line of linesOf(answer.body)) await this.#take(line);
    } catch (error) {
      if (!request.signal.aborted) this.#fail(`The server does not answer (${error.message}): is plrp view still running?`);
    }
  }

  async #take(line) {
    if (line.problem) return this.#fail(line.problem);
    if (line.waiting) return this.#say("Waiting for other visitors …");
    if (line.of) return this.#say(line.done === line.of ? "" : `${line.done} of ${line.of} maps`, line.done / line.of);
    await this.show(line.facts, line.arrays);
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
