/* What a round on a GPU queues, waits for and launches as graphs, and that none of it changes a token (emulated where there is none): the
 * second half of test_cuda_whole.c.
 */
#define CUDA_ROUNDS 1
#include "tests/unit/cross/test_cuda_whole.c"
