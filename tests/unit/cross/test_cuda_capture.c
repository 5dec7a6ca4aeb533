/* What a request leaves in Kafka is what happened, on a GPU too (emulated where there is none): the tests of
 * test_capture.c with an engine whose features, hidden states and logits lie in a device's own memory, are packed there, for three payloads, with prefixes
 * kept and not, and travel beside decoding.
 */
#define CAPTURE_ON DEV_CUDA
#define CAPTURE_EVERY 4
#define CAPTURE_LEAST 15
#define CAPTURE_TOKENS(job) (10 + 2 * (job)) /* emulated ones are dear */
#define CAPTURE_PAYLOADS {RECORD_BF16, RECORD_FP8, RECORD_INT8}
#include "tests/unit/serve/test_capture.c"
