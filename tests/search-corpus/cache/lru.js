/** Remembers the newest answers and forgets what nobody asked for longest. */
export class LruCache {
  constructor(capacity) {
    this.capacity = capacity;
    this.entries = new Map();
  }

  get(key) {
    if (!this.entries.has(key)) return undefined;
    const value = this.entries.get(key);
    this.entries.delete(key);
    this.entries.set(key, value);
    return value;
  }

  set(key, value) {
    this.entries.delete(key);
    this.entries.set(key, value);
    if (this.entries.size > this.capacity) {
      this.evictOldest();
    }
  }

  evictOldest() {
    const oldest = this.entries.keys().next().value;
    this.entries.delete(oldest);
  }
}
