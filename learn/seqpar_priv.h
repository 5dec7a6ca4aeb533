/* The plan in the detail that the parts of learn/seqpar.h need among themselves. */
#pragma once
#include "learn/seqpar.h"

void seqpar_spans(const struct seqpar *sp, int rank, struct seq_span ret[SEQ_SPANS]);  /* that rank's, n_spans of them */
void seqpar_blocks(const struct seqpar *sp, int rank, struct seq_span ret[SEQ_SPANS]); /* the same of its team's blocks, which it attends with */
int seqpar_own_of(const struct seqpar *sp, int u, int s, int k);           /* rows of span s of member u of my team at step k */
int seqpar_att_of(const struct seqpar *sp, int r, int k);                  /* rows of ring rank r's blocks at step k */
int seqpar_block(const struct seqpar *sp, int r, int s, int *ret_first);   /* rows of its block s at step 0; the first, of my part */
