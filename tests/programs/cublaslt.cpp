// A cuBLASLt that multiplies in the host's memory, by the same functions and structs. Of the id 66 it
// knows stages of 1, 2 and 4: the first needs no workspace, the others 4 KiB and 64 MiB.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

struct Made { int64_t values[64]; };
struct Answer { uint64_t words[8]; size_t workspace; int status; float waves; int rest[4]; };
enum { NOT_INITIALIZED = 1, INVALID = 7, NOT_SUPPORTED = 15, BIAS = 4 };

static Made *made(void **into) { return static_cast<Made *>(*into = calloc(1, sizeof(Made))); }
static int set(void *made, int number, const void *value, size_t size) {
    memcpy(&static_cast<Made *>(made)->values[number], value, size);
    return 0;
}
static int64_t of(const void *made, int number) { return static_cast<const Made *>(made)->values[number]; }

static float read(int kind, const void *from, int64_t at) {
    uint16_t bits = static_cast<const uint16_t *>(from)[at];
    if (kind == 2) { _Float16 half; memcpy(&half, &bits, 2); return float(half); }
    uint32_t wide = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}
static void write(int kind, void *to, int64_t at, float value) {
    uint16_t bits;
    if (kind == 2) { _Float16 half = _Float16(value); memcpy(&bits, &half, 2); }
    else {
        uint32_t wide;
        memcpy(&wide, &value, 4);
        bits = std::isnan(value) ? 0x7fc0 : (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;
    }
    static_cast<uint16_t *>(to)[at] = bits;
}

extern "C" {
size_t cublasLtGetVersion() {
    const char *version = getenv("STAND_IN_VERSION");
    return version ? strtoul(version, nullptr, 10) : 130100;
}
int cublasLtCreate(void **handle) { made(handle); return 0; }
int cublasLtMatmulDescCreate(void **into, int compute, int scale) {
    made(into);
    return compute == 68 && scale == 0 ? 0 : INVALID;
}
int cublasLtMatmulDescSetAttribute(void *to, int number, const void *value, size_t size) { return set(to, number, value, size); }
int cublasLtMatmulPreferenceCreate(void **into) { made(into); return 0; }
int cublasLtMatmulPreferenceSetAttribute(void *to, int number, const void *value, size_t size) { return set(to, number, value, size); }
int cublasLtMatrixLayoutCreate(void **into, int kind, uint64_t rows, uint64_t columns, int64_t pitch) {
    int64_t values[] = {kind, int64_t(rows), int64_t(columns), pitch};
    memcpy(made(into)->values, values, sizeof values);
    return pitch < int64_t(rows) ? INVALID : 0;
}

int cublasLtMatmulAlgoCheck(void *, void *op, void *, void *, void *, void *, const uint64_t *words, Answer *answer) {
    bool is_known = words[0] == 0x42 && (words[1] == 1 || words[1] == 2 || words[1] == 4);
    bool has_bias = of(op, 7) != BIAS || (of(op, 8) && of(op, 26));
    memcpy(answer->words, words, sizeof answer->words);
    answer->workspace = words[1] == 4 ? 1 << 26 : words[1] == 2 ? 4096 : 0;
    return answer->status = is_known && has_bias ? 0 : NOT_SUPPORTED;
}
// Where the words have each number of a config, in bits, by cublasLtMatmulAlgoConfigAttributes_t.
static const int PLACES[9] = {0, 32, 96, 128, 160, 192, 64, 224, 240};
int cublasLtMatmulAlgoInit(void *, int, int, int, int, int, int, int id, uint64_t *words) {
    memset(words, 0, 64);
    words[0] = id;
    return id == 66 ? 0 : NOT_SUPPORTED;
}
int cublasLtMatmulAlgoConfigSetAttribute(uint64_t *words, int number, const void *from, size_t size) {
    memcpy(reinterpret_cast<char *>(words) + PLACES[number] / 8, from, size);
    return number && size == (number < 7 ? 4 : 2) ? 0 : INVALID;
}
int cublasLtMatmulAlgoConfigGetAttribute(const uint64_t *words, int number, void *into, size_t size, size_t *written) {
    memcpy(into, reinterpret_cast<const char *>(words) + PLACES[number] / 8, size);
    return (*written = size) == (number < 7 ? 4 : 2) ? 0 : INVALID;
}
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *op, void *a, void *b, void *c, void *d, void *preference, int most, Answer *answers, int *count) {
    if (of(preference, 1) != 1 << 25 || of(preference, 5) != 16 || of(preference, 8) != 16) return INVALID;
    for (*count = 0; *count < 2 && *count < most; ++*count) {
        uint64_t words[8] = {0x42, uint64_t(*count + 1), 0, 0x4000000000001, 0, 0, 0, 0};
        if (int status = cublasLtMatmulAlgoCheck(handle, op, a, b, c, d, words, answers + *count)) return status;
    }
    return 0;
}
int cublasLtMatmul(void *handle, void *op, const float *alpha, const void *a, void *la, const void *b, void *lb, const float *beta, const void *, void *, void *d, void *ld, const uint64_t *words, void *room, size_t size, void *) {
    Answer answer;
    if (!handle || *alpha != 1 || *beta != 0) return INVALID;
    if (int status = cublasLtMatmulAlgoCheck(handle, op, la, lb, ld, ld, words, &answer)) return status;
    if (answer.workspace > size || (size && !room)) return NOT_INITIALIZED;
    int64_t kind = of(la, 0), turned_a = of(op, 3), turned_b = of(op, 4);
    int64_t rows = of(ld, 1), columns = of(ld, 2), depth = of(la, turned_a ? 1 : 2);
    if (of(la, turned_a ? 2 : 1) != rows || of(lb, turned_b ? 1 : 2) != columns) return INVALID;
    if (of(lb, turned_b ? 2 : 1) != depth || of(lb, 0) != kind || of(ld, 0) != kind) return INVALID;
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t column = 0; column < columns; ++column) {
            float sum = 0;
            for (int64_t k = 0; k < depth; ++k)
                sum += read(kind, a, turned_a ? row * of(la, 3) + k : k * of(la, 3) + row) *
                       read(kind, b, turned_b ? k * of(lb, 3) + column : column * of(lb, 3) + k);
            if (of(op, 7) == BIAS) sum += read(of(op, 26), reinterpret_cast<const void *>(of(op, 8)), row);
            write(kind, d, column * of(ld, 3) + row, sum);
        }
    return 0;
}
}
