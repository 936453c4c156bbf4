/* A program in C that trains: logistic regression on made-up points by stochastic gradient descent.
 *
 * It knows the runner by one variable: RUNNER_RESUME_FROM is the checkpoint to go on from. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { WIDTH = 64, STEPS = 60, BATCH = 120000, SAVE_EVERY = 5 };

struct state {
    uint64_t random;
    uint64_t step;
    double weights[WIDTH];
};

static double draw(uint64_t *random) { /* xorshift64*: the state is all that a resume needs */
    *random ^= *random >> 12;
    *random ^= *random << 25;
    *random ^= *random >> 27;
    return (double)(*random * 2685821657736338717ULL >> 11) / 9007199254740992.0 - 0.5;
}

static void save(const struct state *state, const char *path) {
    char draft[4096];
    snprintf(draft, sizeof draft, "%s.new", path);
    FILE *file = fopen(draft, "wb");
    if (!file || fwrite(state, sizeof *state, 1, file) != 1 || fclose(file) || rename(draft, path)) {
        perror(path);
        exit(1);
    }
}

int main(void) {
    struct state state = {.random = 88172645463325252ULL};
    const char *newest = getenv("RUNNER_RESUME_FROM");
    FILE *file = newest && *newest ? fopen(newest, "rb") : NULL;
    if (file) {
        if (fread(&state, sizeof state, 1, file) != 1) return 1;
        fclose(file);
        printf("resumed from step %llu\n", (unsigned long long)state.step);
    }
    mkdir("out", 0777);
    while (state.step < STEPS) {
        double loss = 0;
        for (int row = 0; row < BATCH; row++) {
            double point[WIDTH], sum = 0, score = 0;
            for (int i = 0; i < WIDTH; i++) {
                point[i] = draw(&state.random);
                sum += point[i] * (i % 2 ? 1 : -1);
                score += point[i] * state.weights[i];
            }
            double target = sum > 0, predicted = 1 / (1 + exp(-score));
            loss -= log(fmax(target ? predicted : 1 - predicted, 1e-12)) / BATCH;
            for (int i = 0; i < WIDTH; i++) state.weights[i] -= 0.05 * (predicted - target) * point[i];
        }
        state.step++;
        if (state.step % SAVE_EVERY == 0) {
            char path[64];
            snprintf(path, sizeof path, "out/step-%04llu.bin", (unsigned long long)state.step);
            save(&state, path);
            printf("step %llu/%d loss %.4f\n", (unsigned long long)state.step, STEPS, loss);
            fflush(stdout);
        }
    }
    save(&state, "out/final.bin");
    return 0;
}
