/* Acts in frames that come over standard input, for the tests of policy.h; see c_policy.py for the messages. */
#include "counted.h"
#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#endif
#include <time.h>

enum { MOST_ARRAYS = 4096 };
static void *arrays[MOST_ARRAYS]; /* of the frame */
static int num_arrays;

static void get(void *to, size_t size) {
    if (fread(to, 1, size, stdin) != size) exit(0); /* no further frame */
}

static int64_t get_int(void) {
    int64_t number;
    get(&number, sizeof number);
    return number;
}

/* An array of its own memory, so that sanitizers see what is read behind it; NULL for -1 bytes. */
static void *get_array(void) {
    int64_t size = get_int();
    if (size < 0) return NULL;
    arrays[num_arrays] = malloc((size_t)size);
    get(arrays[num_arrays], (size_t)size);
    return arrays[num_arrays++];
}

static void put(const void *from, size_t size) { fwrite(from, 1, size, stdout); }

static void put_array(const void *from, size_t size) {
    int64_t bytes = from ? (int64_t)size : -1;
    put(&bytes, sizeof bytes);
    if (from) put(from, size);
}

static void *whole_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    void *data;
    if (!file) exit(3);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    data = malloc(*size ? *size : 1);
    if (fread(data, 1, *size, file) != *size) exit(3);
    fclose(file);
    return data;
}

typedef struct shown { policy_frame frame; int forgets, has_seed; uint64_t seed; } shown;

static shown get_frame(void) {
    shown s = {{NULL, NULL, NULL}, 0, 0, 0};
    int64_t i, types, actions;
    policy_entities *entities;
    policy_offer *offers;
    s.forgets = (int)get_int(), s.has_seed = (int)get_int(), s.seed = (uint64_t)get_int();
    types = get_int(), actions = get_int();
    entities = arrays[num_arrays++] = malloc((size_t)(types + 1) * sizeof *entities);
    offers = arrays[num_arrays++] = malloc((size_t)(actions + 1) * sizeof *offers);
    for (i = 0; i < types; i++) {
        entities[i].count = (int)get_int();
        entities[i].features = get_array(), entities[i].visible = get_array(), entities[i].ids = get_array();
    }
    s.frame.global_features = get_array();
    for (i = 0; i < actions; i++) {
        offers[i].num_actors = (int)get_int(), offers[i].actors = get_array();
        offers[i].num_actees = (int)get_int(), offers[i].actees = get_array();
        offers[i].mask = get_array(), offers[i].mask_after = get_array();
    }
    s.frame.entities = entities, s.frame.offers = offers;
    return s;
}

static void forget_arrays(void) {
    while (num_arrays) free(arrays[--num_arrays]);
}

static void act(const policy *trained, policy_agent *agent, int repeats) {
    shown s = get_frame();
    policy_result result = {0, NULL};
    const char *wrong = NULL;
    struct timespec from, to;
    double seconds;
    int k;
    if (s.forgets) policy_agent_forget(agent);
    if (repeats > 1) policy_act(agent, &s.frame, NULL, &result); /* warm */
    timespec_get(&from, TIME_UTC);
    for (k = 0; k < repeats && !wrong; k++) wrong = policy_act(agent, &s.frame, s.has_seed ? &s.seed : NULL, &result);
    timespec_get(&to, TIME_UTC);
    seconds = ((double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec)) / repeats;
    put_array(wrong, wrong ? strlen(wrong) : 0);
    put(&seconds, sizeof seconds), put(&allocations, sizeof allocations), put(&s.seed, sizeof s.seed);
    for (k = 0; !wrong && k < trained->num_actions; k++) {
        const policy_choices *c = &result.actions[k];
        const size_t actors = (size_t)c->num_actors, actees = (size_t)s.frame.offers[k].num_actees;
        put_array(c->values, sizeof(int32_t) * (trained->actions[k].kind == P_SET ? actors * actees : actors));
        put_array(c->numbers, sizeof(float) * actors * (size_t)trained->actions[k].choices);
        put_array(c->log_probs, sizeof(float) * actors);
        put_array(c->logits, sizeof(float) * c->num_logits);
    }
    if (!wrong) put(&result.value, sizeof result.value);
    fflush(stdout);
    forget_arrays();
}


int main(int count, char **words) {
    char error[POLICY_ERROR];
    size_t size;
    void *data;
    policy *trained;
    policy_agent *agent;
    int repeats = count > 2 ? atoi(words[2]) : 1;
#ifdef _WIN32
    _setmode(0, _O_BINARY), _setmode(1, _O_BINARY);
#endif
    data = whole_file(words[1], &size);
    trained = policy_read(data, size, error);
    put_array(*error ? error : NULL, strlen(error)), put(&most_allocated, sizeof most_allocated);
    fflush(stdout);
    if (trained && (agent = policy_agent_new(trained)))
        for (;;) act(trained, agent, repeats);
    return 0;
}
