/* Reads damaged copies of a policy file, and acts with those that are still accepted: policy_damage FILE COUNT SEED.
 *
 * Sanitizers find what is read or written where it must not be. Prints how many were refused by their hash, how many for another
 * reason, and how many acted; ends with 1 where a refusal has no message, or reading takes more memory than the file has bytes. */
#include "counted.h"

static uint64_t state;
static size_t below(size_t n) { return n ? (size_t)(p_uniform(&state) * 16777216.0f) * 16777216u / 7 % n : 0; }

/* Damages a part of the first `among` of `size` bytes, which may become twice as many; returns the new size. */
static size_t damage(unsigned char *data, size_t size, size_t among) {
    size_t at = below(among), length = (size_t)1 << below(10), to, k;
    if (length > size - at) length = size - at;
    switch (below(10)) {
    case 0: case 1: data[at] ^= (unsigned char)(1 << below(8)); break;
    case 2: data[at] = (unsigned char)below(256); break;
    case 3: for (k = 0; k < length; k++) data[at + k] = (unsigned char)below(256); break;
    case 4: memset(data + at, 0, length); break;
    case 5: memmove(data + at, data + at + length, size - at - length); return size - length; /* lost */
    case 6: /* repeated elsewhere */
        to = below(among);
        memmove(data + to + length, data + to, size - to);
        memmove(data + to, data + (at > to ? at + length : at), length);
        return size + length;
    case 7: return at; /* cut short */
    default: /* another digit, or a bracket, behind that place */
        while (at < size && !(data[at] >= '0' && data[at] <= '9') && !strchr("[]{}\",:", data[at] ? data[at] : 1)) at++;
        if (at < size) data[at] = (unsigned char)"0123456789[]{}\"-e.,"[below(19)];
    }
    return size;
}

/* Writes the hash that belongs to the content, as who forges a file does. */
static void seal(unsigned char *data, size_t size) {
    char digits[65];
    size_t at;
    for (at = 0; at + 73 < size && memcmp(data + at, "\"hash\":\"", 8); at++) {}
    if (at + 73 >= size) return;
    p_hash(data, size, at + 8, digits);
    memcpy(data + at + 8, digits, 64);
}

static int act(const policy *trained) {
    policy_agent *agent = policy_agent_new(trained);
    policy_entities *entities = calloc((size_t)trained->num_types + 1, sizeof *entities);
    policy_offer *offers = calloc((size_t)trained->num_actions, sizeof *offers);
    int32_t *all = malloc(sizeof *all * 3 * ((size_t)trained->num_types + 1));
    int64_t ids[2] = {4, 5};
    float *features = calloc((size_t)trained->num_globals + 1, sizeof *features);
    policy_frame frame = {entities, features, offers};
    policy_result result;
    int k, i, acted = 0, tokens = 0;
    for (k = 0; k < trained->num_types; k++) {
        const int n = trained->nets[0].types[k].num_given, count = 1 + k % 2;
        float *own = malloc(sizeof *own * 2 * ((size_t)n + 1));
        for (i = 0; i < 2 * n; i++) own[i] = k % 3 ? 0 : p_uniform(&state);
        entities[k].count = count, entities[k].features = own, entities[k].ids = ids;
        for (i = 0; i < count; i++, tokens++) all[tokens] = tokens;
    }
    for (k = 0; k < trained->num_actions; k++) {
        offers[k].num_actors = trained->actions[k].kind == P_GLOBAL ? 1 : tokens, offers[k].actors = all;
        offers[k].num_actees = tokens, offers[k].actees = all;
    }
    for (k = 0; agent && k < 3; k++) acted += !policy_act(agent, &frame, k % 2 ? &state : NULL, &result);
    policy_agent_free(agent);
    for (k = 0; k < trained->num_types; k++) free((void *)entities[k].features);
    free(entities), free(offers), free(all), free(features);
    return acted;
}

int main(int count, char **words) {
    FILE *file = fopen(words[1], "rb");
    size_t size, whole, k;
    unsigned char *original, *data, *exact;
    long number, by_hash = 0, refused = 0, accepted = 0, acted = 0;
    char error[POLICY_ERROR];
    if (count != 4 || !file) return 2;
    fseek(file, 0, SEEK_END), whole = (size_t)ftell(file), rewind(file);
    original = malloc(whole), data = malloc(2 * whole + 8192);
    if (fread(original, 1, whole, file) != whole) return 2;
    fclose(file);
    for (number = 0; number < atol(words[2]); number++) {
        policy *trained;
        uint64_t header = 0;
        state = (uint64_t)atol(words[3]) * 1000003u + (uint64_t)number;
        memcpy(data, original, size = whole);
        for (k = 0; k < 8; k++) header |= (uint64_t)data[k] << 8 * k;
        for (k = 1 + below(3); k && size; k--) size = damage(data, size, below(3) ? 8 + (size_t)header < size ? 8 + (size_t)header : size : size);
        if (below(5)) { /* most often the length of the header fits again, and so does the hash */
            const uint64_t length = header + size - whole;
            for (k = 0; below(5) && size > 8 && k < 8; k++) data[k] = (unsigned char)(length >> 8 * k);
            seal(data, size);
        }
        exact = malloc(size ? size : 1), memcpy(exact, data, size); /* nothing behind it may be read */
        most_allocated = allocated = 0;
        trained = policy_read(exact, size, error);
        if (most_allocated > (size > 8192 ? size : 8192) || (!trained && !*error)) return printf("file %ld: %s\n", number, error), 1;
        if (!trained) by_hash += strstr(error, "the hash") != NULL, refused++;
        else accepted++, acted += act(trained) > 0;
        if (getenv("POLICY_DAMAGE_SAYS")) printf("%ld %s\n", number, error);
        policy_free(trained);
        if (allocated) return printf("file %ld: %zu bytes are lost\n", number, allocated), 1;
        free(exact);
    }
    printf("%ld refused, %ld of them by their hash; %ld accepted, %ld of them acted\n", refused, by_hash, accepted, acted);
    free(original), free(data);
    return 0;
}
