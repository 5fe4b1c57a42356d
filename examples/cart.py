"""A shopping cart with six gaps."""

from dataclasses import dataclass, field


@dataclass
class Item:
    name: str
    price: float
    quantity: int = 1

    def total(self) -> float:
        return <FILL>


@dataclass
class Cart:
    items: list[Item] = field(<FILL>)

    def add(self, item: Item) -> None:
        self.items.<FILL>

    def find(self, name: str) -> Item | None:
        for item in self.items:
            if <FILL>:
                return item
        return None

    def total(self) -> float:
        return sum(<FILL>)

    def is_empty(self) -> bool:
        return <FILL>
