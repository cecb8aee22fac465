/* The loops of replay/engine.py, which says what they do: the same plan gives the same schedule in both.
 *
 * A plan is columns (n): what an operation takes, the gap before it, its priority in the queue of its device,
 * the device or -1, of each device its two sides or -1, what each side carries; those that come after operation i are after[after_ptr[i]] to before after[after_ptr[i + 1]].
 * `waiting` has how many inputs each still waits for, and `start` is filled in. Numbers were checked there. */
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
    int64_t n, devices;
    int64_t *dur;
    const int64_t *gap, *after_ptr, *after, *priority, *device, *sides;
    const double *carries;
    int64_t *waiting, *start;
} plan;
typedef struct { /* heaps are by these numbers, the first first */
    int64_t first, second, op;
} item;
typedef struct {
    item *items;
    int64_t n;
} heap;

static bool is_before(item a, item b) {
    if (a.first != b.first) return a.first < b.first;
    return a.second != b.second ? a.second < b.second : a.op < b.op;
}

static void push(heap *h, int64_t first, int64_t second, int64_t op) {
    item one = {first, second, op};
    int64_t at = h->n++;
    for (; at > 0 && is_before(one, h->items[(at - 1) / 2]); at = (at - 1) / 2)
        h->items[at] = h->items[(at - 1) / 2];
    h->items[at] = one;
}

static int64_t pop(heap *h) {
    int64_t top = h->items[0].op, at = 0, below;
    item one = h->items[--h->n];
    for (; (below = 2 * at + 1) < h->n; at = below) {
        if (below + 1 < h->n && is_before(h->items[below + 1], h->items[below])) below++;
        if (!is_before(h->items[below], one)) break;
        h->items[at] = h->items[below];
    }
    h->items[at] = one;
    return top;
}

/* Where no operation has a device; `start` holds the gaps. Returns how
 * many operations ended, -1 for lack of memory. */
int64_t run_without_queues(const plan *p) {
    int64_t *ready = malloc(((size_t)p->n + 1) * sizeof *ready), n_ready = 0, done = 0;
    if (ready == NULL) return -1;
    for (int64_t op = 0; op < p->n; op++)
        if (p->waiting[op] == 0) ready[n_ready++] = op;
    for (; n_ready > 0; done++) {
        int64_t op = ready[--n_ready], end = p->start[op] + p->dur[op];
        for (int64_t edge = p->after_ptr[op]; edge < p->after_ptr[op + 1]; edge++) {
            int64_t then = p->after[edge];
            if (end + p->gap[then] > p->start[then]) p->start[then] = end + p->gap[then];
            if (--p->waiting[then] == 0) ready[n_ready++] = then;
        }
    }
    free(ready);
    return done;
}

typedef struct {
    heap events, *queues; /* events are (time, code): the end of `code`, or that `code - n` joins its queue */
    item *queued;
    int64_t *ended, *changed, n_ended, n_changed, now, done;
    bool *is_free, *is_changed;
    int64_t n_sides, n_busy, *busy, *operation, *users, since, next; /* the network */
    double *left, *speed, *room;
} state;

static void change(state *s, int64_t device) {
    if (s->is_changed[device]) return;
    s->is_changed[device] = true;
    s->changed[s->n_changed++] = device;
}

static void join_queue(const plan *p, state *s, int64_t op) {
    push(&s->queues[p->device[op]], p->priority[op], s->now, op);
    change(s, p->device[op]);
}

static void end_all(const plan *p, state *s) {
    while (s->n_ended > 0) {
        int64_t op = s->ended[--s->n_ended];
        s->done++;
        if (p->device[op] >= 0) s->is_free[p->device[op]] = true, change(s, p->device[op]);
        for (int64_t edge = p->after_ptr[op]; edge < p->after_ptr[op + 1]; edge++) {
            int64_t then = p->after[edge], ready = s->now + p->gap[then];
            if (--p->waiting[then] > 0) continue;
            if (p->device[then] < 0) {
                p->start[then] = ready;
                if (ready + p->dur[then] > s->now) push(&s->events, ready + p->dur[then], then, then);
                else s->ended[s->n_ended++] = then;
            } else if (ready > s->now) {
                push(&s->events, ready, p->n + then, p->n + then);
            } else {
                join_queue(p, s, then);
            }
        }
    }
}

/* Ends what is over on connections. */
static void end_sent(const plan *p, state *s) {
    int64_t n = 0, passed = s->now - s->since, n_over = 0;
    for (int64_t i = 0; i < s->n_busy; i++) {
        int64_t one = s->busy[i];
        if (s->left[one] - (double)passed * s->speed[one] > 0.5) s->busy[n++] = one;
        else s->users[s->n_sides + n_over++] = s->operation[one];
    }
    s->n_busy = n;
    for (int64_t i = 0; i < n_over; i++) {
        int64_t op = s->users[s->n_sides + i];
        p->dur[op] = s->now - p->start[op];
        s->ended[s->n_ended++] = op;
        end_all(p, s);
    }
}

/* Gives each busy connection its share from now on: of the tightest side first. */
static void share(const plan *p, state *s) {
    int64_t passed = s->now - s->since, open = s->n_busy;
    s->since = s->now;
    for (int64_t side = 0; side < s->n_sides; side++) s->room[side] = p->carries[side], s->users[side] = 0;
    for (int64_t i = 0; i < s->n_busy; i++) {
        int64_t one = s->busy[i];
        s->left[one] -= (double)passed * s->speed[one], s->speed[one] = -1;
        for (int j = 0; j < 2; j++)
            if (p->sides[2 * one + j] >= 0) s->users[p->sides[2 * one + j]]++;
    }
    while (open > 0) {
        int64_t tight = -1;
        double least = INFINITY;
        for (int64_t side = 0; side < s->n_sides; side++)
            if (s->users[side] > 0 && s->room[side] / (double)s->users[side] < least)
                tight = side, least = s->room[side] / (double)s->users[side];
        for (int64_t i = 0; i < s->n_busy; i++) {
            int64_t one = s->busy[i];
            if (s->speed[one] >= 0 || (p->sides[2 * one] != tight && p->sides[2 * one + 1] != tight)) continue;
            s->speed[one] = least, open--;
            for (int j = 0; j < 2; j++)
                if (p->sides[2 * one + j] >= 0)
                    s->users[p->sides[2 * one + j]]--, s->room[p->sides[2 * one + j]] -= least;
        }
    }
    int64_t wait = INT64_MAX;
    for (int64_t i = 0; i < s->n_busy; i++) {
        double left = s->left[s->busy[i]] > 0 ? s->left[s->busy[i]] / s->speed[s->busy[i]] : 0;
        int64_t whole = (int64_t)left + (left > (double)(int64_t)left);
        if (whole < wait) wait = whole;
    }
    s->next = s->n_busy > 0 ? s->now + wait : s->now;
}

static void run(const plan *p, state *s) {
    int64_t room = 0;
    for (int64_t op = 0; op < p->n; op++)
        if (p->device[op] >= 0) s->queues[p->device[op]].n++;
    for (int64_t device = 0; device < p->devices; device++) {
        heap *queue = &s->queues[device];
        queue->items = s->queued + room, room += queue->n, queue->n = 0, s->is_free[device] = true;
    }
    for (int64_t op = 0; op < p->n; op++) {
        if (p->waiting[op] != 0) continue;
        if (p->device[op] < 0) {
            p->start[op] = p->gap[op];
            push(&s->events, p->gap[op] + p->dur[op], op, op);
        } else {
            push(&s->events, p->gap[op], p->n + op, p->n + op);
        }
    }
    while (s->events.n > 0 || s->n_busy > 0) {
        s->now = s->events.n > 0 ? s->events.items[0].first : s->next;
        bool is_shared_anew = s->n_busy > 0 && s->next <= s->now;
        if (is_shared_anew) s->now = s->next, end_sent(p, s);
        while (s->events.n > 0 && s->events.items[0].first == s->now) {
            int64_t code = pop(&s->events);
            if (code < p->n) s->ended[s->n_ended++] = code;
            else join_queue(p, s, code - p->n);
            end_all(p, s);
        }
        for (int64_t i = 0; i < s->n_changed; i++) {
            int64_t device = s->changed[i];
            s->is_changed[device] = false;
            if (!s->is_free[device] || s->queues[device].n == 0) continue;
            int64_t op = pop(&s->queues[device]);
            s->is_free[device] = false;
            p->start[op] = s->now;
            if (p->sides[2 * device] < 0 && p->sides[2 * device + 1] < 0) {
                push(&s->events, s->now + p->dur[op], op, op);
                continue;
            }
            s->busy[s->n_busy++] = device, s->operation[device] = op;
            s->left[device] = (double)p->dur[op], s->speed[device] = 0;
            is_shared_anew = true;
        }
        s->n_changed = 0;
        if (is_shared_anew) share(p, s);
    }
}

/* Where some have a device. All that happens in one moment is worked off before devices choose. */
int64_t run_with_queues(const plan *p) {
    size_t n = (size_t)p->n + 1, devices = (size_t)p->devices + 1;
    int64_t n_sides = 0;
    for (int64_t i = 0; i < 2 * p->devices; i++)
        if (p->sides[i] >= n_sides) n_sides = p->sides[i] + 1;
    state s = {.events = {malloc(n * sizeof(item)), 0}, .queues = calloc(devices, sizeof(heap)),
               .queued = malloc(n * sizeof(item)), .ended = malloc(n * sizeof(int64_t)),
               .changed = malloc(devices * sizeof(int64_t)), .is_free = malloc(devices),
               .is_changed = calloc(devices, 1), .n_sides = n_sides, .busy = malloc(devices * sizeof(int64_t)),
               .operation = malloc(devices * sizeof(int64_t)),
               .users = malloc(((size_t)n_sides + devices) * sizeof(int64_t)),
               .left = malloc(devices * sizeof(double)), .speed = malloc(devices * sizeof(double)),
               .room = malloc(((size_t)n_sides + 1) * sizeof(double))};
    void *held[] = {s.events.items, s.queues, s.queued, s.ended, s.changed, s.is_free, s.is_changed, s.busy,
                    s.operation, s.users, s.left, s.speed, s.room};
    bool has_room = true;
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) has_room = has_room && held[i] != NULL;
    if (has_room) run(p, &s);
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) free(held[i]);
    return has_room ? s.done : -1;
}
