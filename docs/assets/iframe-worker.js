// The search runs in a worker. Browsers refuse workers to pages that were opened as files, so there a hidden frame does its work.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      this.ready = new Promise((resolve) => {
        this.frame.srcdoc = "<!doctype html><title>search</title>";
        this.frame.addEventListener("load", () => this.start(new URL(url, document.baseURI).href, resolve), { once: true });
      });
      const add = () => document.body.append(this.frame);
      document.body ? add() : addEventListener("DOMContentLoaded", add);
    }

    start(url, resolve) {
      const inside = this.frame.contentWindow;
      const script = (address) =>
        new Promise((done, failed) => {
          const element = inside.document.createElement("script");
          Object.assign(element, { src: address, onload: done, onerror: failed });
          inside.document.head.append(element);
        });
      inside.importScripts = (...addresses) => Promise.all(addresses.map((one) => script(new URL(one, url).href)));
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data: structuredClone(data) }); // as a worker does: nothing is shared
        setTimeout(() => {
          this.dispatchEvent(event);
          this.onmessage?.(event);
        });
      };
      script(url).then(resolve);
    }

    postMessage(data) {
      const copy = structuredClone(data);
      this.ready.then(() => {
        const inside = this.frame.contentWindow;
        setTimeout(() => inside.dispatchEvent(new inside.MessageEvent("message", { data: copy })));
      });
    }

    terminate() {
      this.frame.remove();
    }
  };
}
