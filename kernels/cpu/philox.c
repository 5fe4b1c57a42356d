/* Philox 4x32-10, a counted generator of random numbers (Salmon et al. 2011); philox.py is the same in numpy. */
#include "cpu.h"

enum { BLOCKS = 16 }; /* counters at once, for vectors */

/* Four numbers of 32 bits for each of some counters, in place. */
static void draw(uint32_t word[4][BLOCKS], uint64_t key) {
    uint32_t left = (uint32_t)key, right = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            const uint64_t first = (uint64_t)0xD2511F53 * word[0][i], second = (uint64_t)0xCD9E8D57 * word[2][i];
            word[0][i] = (uint32_t)(second >> 32) ^ word[1][i] ^ left, word[1][i] = (uint32_t)second;
            word[2][i] = (uint32_t)(first >> 32) ^ word[3][i] ^ right, word[3][i] = (uint32_t)first;
        }
        left += 0x9E3779B9, right += 0xBB67AE85;
    }
}

/* Numbers in (0, 1) [rows, columns]: that of a column is word `column % 4` for the key `seed` and the counter (stream,
   step, `first` + row, column / 4). */
EXPORT void caesura_uniform(uint64_t seed, uint32_t stream, uint32_t step, int64_t first, int64_t rows, int64_t columns,
                            double *out) {
    for (int64_t row = 0; row < rows; row++, out += columns)
        for (int64_t from = 0; from < columns; from += 4 * BLOCKS) {
            uint32_t word[4][BLOCKS];
            for (int i = 0; i < BLOCKS; i++) {
                word[0][i] = stream, word[1][i] = step, word[2][i] = (uint32_t)(first + row);
                word[3][i] = (uint32_t)(from / 4 + i);
            }
            draw(word, seed);
            const int64_t left = columns - from, count = left < 4 * BLOCKS ? left : 4 * BLOCKS;
            for (int64_t i = 0; i < count; i++) out[from + i] = (word[i % 4][i / 4] + 0.5) * 0x1p-32;
        }
}
