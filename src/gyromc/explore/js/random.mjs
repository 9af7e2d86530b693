// Seeded random numbers: the same seed gives the same numbers on every machine.

/** A generator of standard normals (Box and Muller) from 32-bit words of the generator sfc32. */
export class Random {
  constructor(seed) {
    this.state = Uint32Array.of(seed >>> 0, 0x9e3779b9, 0x243f6a88, 1);
    this.spare = null;
    for (let k = 0; k < 15; k++) this.word();
  }

  word() {
    const s = this.state;
    const out = (s[0] + s[1] + s[3]) >>> 0;
    s[3] += 1;
    s[0] = s[1] ^ (s[1] >>> 9);
    s[1] = s[2] + (s[2] << 3);
    s[2] = ((s[2] << 21) | (s[2] >>> 11)) + out;
    return out;
  }

  /** Uniform on (0, 1), never 0 or 1. */
  uniform() {
    return (this.word() + 0.5) / 4294967296;
  }

  normal() {
    if (this.spare !== null) {
      const kept = this.spare;
      this.spare = null;
      return kept;
    }
    const radius = Math.sqrt(-2 * Math.log(this.uniform()));
    const angle = 2 * Math.PI * this.uniform();
    this.spare = radius * Math.sin(angle);
    return radius * Math.cos(angle);
  }
}
