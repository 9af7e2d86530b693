"""Random number generators as their authors describe them, on whole numbers."""


def xoshiro(state: list[int], count: int) -> list[int]:
    """xoshiro128++ on whole numbers, as its authors describe it."""
    mask, words = 0xFFFFFFFF, []
    rotate = lambda x, k: ((x << k) | (x >> (32 - k))) & mask
    a, b, c, d = state
    for _ in range(count):
        words.append((rotate((a + d) & mask, 7) + a) & mask)
        t = (b << 9) & mask
        c ^= a
        d ^= b
        b ^= c
        a ^= d
        c ^= t
        d = rotate(d, 11)
    return words
