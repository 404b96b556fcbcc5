// A page on a disk may start no worker: the script of the search runs in a frame of its own there.
if (location.protocol === 'file:') {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement('iframe');
      frame.hidden = true;
      document.body.append(frame);
      this.scope = frame.contentWindow;
      this.scope.document.write('<!doctype html>');
      this.scope.document.close();
      this.scope.postMessage = data => this.dispatchEvent(new MessageEvent('message', { data }));
      const script = this.scope.document.createElement('script');
      script.src = url;
      script.onload = () => {
        const messages = this.waiting;
        this.waiting = null;
        messages.forEach(data => this.postMessage(data));
      };
      this.scope.document.body.append(script);
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.scope.dispatchEvent(new MessageEvent('message', { data }));
    }
  };
}
