// One clock for both runs: a slider over the time, marks where steps ended, play at a speed.

const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Playback {
  /** `show(ms)` draws that time and says it in words. */
  constructor({ slider, ticks, button, speed }, show) {
    Object.assign(this, { slider, ticks, button, speed, draw: show, marks: [] });
    button.addEventListener("click", () => (this.playing ? this.pause() : this.play()));
    slider.addEventListener("input", () => {
      this.pause();
      this.show(Number(slider.value));
    });
    slider.addEventListener("keydown", (event) => this.#key(event));
    this.pause();
  }

  /** Nothing to play. */
  clear() {
    this.pause();
    this.marks = [];
    this.ticks.replaceChildren();
    this.slider.value = 0;
    this.slider.disabled = this.button.disabled = true;
  }

  /** Play what the runs, by name, have done; where motion is not wanted, show its end. */
  begin(runs) {
    const total = Math.max(1, ...Object.values(runs).map((run) => run.lasts));
    const marks = Object.entries(runs).flatMap(([name, run]) => run.frames.map((frame) => ({ name, ...frame })));
    this.marks = [...new Set([0, ...marks.map(({ ms }) => ms)])].sort((one, other) => one - other);
    this.ticks.replaceChildren(...marks.map(({ name, ms, type }) => {
      const tick = document.createElement("i");
      tick.classList.add(`of-${name}`, type);
      tick.classList.toggle("end", type === "ended");
      tick.style.left = `${(ms / total) * 100}%`;
      return tick;
    }));
    this.slider.max = total;
    this.slider.disabled = this.button.disabled = false;
    this.show(still.matches ? total : 0);
    if (!still.matches) this.play();
  }

  show(ms) {
    this.slider.value = ms;
    this.slider.setAttribute("aria-valuetext", this.draw(ms));
  }

  play() {
    const total = Number(this.slider.max);
    if (Number(this.slider.value) >= total) this.show(0);
    this.button.ariaLabel = "Pause";
    let last = performance.now();
    const frame = (now) => {
      this.show(Math.min(total, Number(this.slider.value) + (now - last) / Number(this.speed.value)));
      last = now;
      if (Number(this.slider.value) >= total) this.pause();
      else this.playing = requestAnimationFrame(frame);
    };
    this.playing = requestAnimationFrame(frame);
  }

  pause() {
    cancelAnimationFrame(this.playing);
    this.playing = 0;
    this.button.ariaLabel = "Play";
  }

  #key(event) {
    const at = Number(this.slider.value);
    const next = {
      ArrowRight: () => this.marks.find((mark) => mark > at),
      ArrowLeft: () => this.marks.findLast((mark) => mark < at),
    }[event.key]?.();
    if (next === undefined) return;
    event.preventDefault();
    this.pause();
    this.show(next);
  }
}
