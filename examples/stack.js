// A stack with a limit.

export class Stack {
  constructor(limit) {
    this.limit = limit;
    this.items = [];
  }

  push(item) {
    if (this.items.length >= ) {
      throw new Error("the stack is full");
    }
    this.items.push(item);
  }

  pop() {
    
  }

  get size() {
    return this.items.length;
  }
}
