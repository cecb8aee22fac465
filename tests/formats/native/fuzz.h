/* What the fuzzers share; u64 is of the sources that they include. */
static u64 state;

static u64 below(u64 n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % n;
}
