/* A streaming chat endpoint whose times are known: what the client's clock is checked against.
 *
 *   cc -O2 -o sse_truth sse_truth.c                              plain HTTP
 *   cc -O2 -DTRUTH_TLS -o sse_truth_tls sse_truth.c -lssl -lcrypto   the same over TLS
 *   ./sse_truth --port 8100 --ttft-ms 200 --itl-ms 20 --log truth.csv [--cert cert.pem --key key.pem]
 *
 * One thread, epoll and a heap of deadlines, Linux only; listens on 127.0.0.1. POST /v1/chat/completions streams
 * max_completion_tokens (or max_tokens) chunks: the first at --ttft-ms after the request was read, the others --itl-ms
 * apart, counted from the first so that nothing drifts; 0 = as fast as the client reads, one event a write. The headers
 * and a role chunk go out with the first token, as vLLM sends them. Any other request: 404.
 *
 * The log is written at the end (SIGTERM), one line a request; times are CLOCK_MONOTONIC ns (Python's time.monotonic_ns() on Linux):
 *   request_id        from the x-request-id header
 *   t_request         when the request had been read in full
 *   rx_wait_max_ns    the request can have waited unread in the kernel for at most this long before t_request
 *   t_first_token     just before the write of the first token
 *   t_last            just after the last write
 *   chunks            token chunks sent
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifdef TRUTH_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
static SSL_CTX *tls;
#endif

#define FRESH_NS 20000 /* a poll that slept this long returned because of what it reports */
#define MAX_REQUEST (64u << 20)
#define MAX_EVENTS 1024

typedef struct {
    char *data;
    size_t len, cap;
} Buffer;

typedef struct Conn {
    int fd;
    int heap_at;  /* index in the heap, -1: not waiting */
    bool waiting_for_room;
    Buffer in, out;
    size_t out_sent;
    long tokens_wanted, tokens_sent; /* wanted 0: no request is being answered */
    uint64_t due, first_due;
    uint64_t t_request, rx_wait_max, t_first_token;
    char request_id[64];
#ifdef TRUTH_TLS
    SSL *ssl;
#endif
} Conn;

static uint64_t ttft_ns, itl_ns;
static int epoll_fd;
static FILE *log_file;
static uint64_t fresh_since; /* no event of this batch was there before */
static volatile sig_atomic_t stopping;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void reserve(Buffer *b, size_t more) {
    if (b->len + more <= b->cap)
        return;
    b->cap = b->cap ? b->cap : 4096;
    while (b->cap < b->len + more)
        b->cap *= 2;
    b->data = realloc(b->data, b->cap);
    if (!b->data)
        abort();
}

static void append(Buffer *b, const char *data, size_t n) {
    reserve(b, n);
    memcpy(b->data + b->len, data, n);
    b->len += n;
}

/* ------------------------------------------------------------------------------------------- heap of deadlines */

static Conn **heap;
static int heap_len, heap_cap;

static void heap_put(int i, Conn *c) {
    heap[i] = c;
    c->heap_at = i;
}

static void heap_sift(int i) {
    Conn *c = heap[i];
    while (i > 0 && heap[(i - 1) / 2]->due > c->due) {
        heap_put(i, heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    for (;;) {
        int child = 2 * i + 1;
        if (child >= heap_len)
            break;
        if (child + 1 < heap_len && heap[child + 1]->due < heap[child]->due)
            child++;
        if (heap[child]->due >= c->due)
            break;
        heap_put(i, heap[child]);
        i = child;
    }
    heap_put(i, c);
}

static void wait_until(Conn *c, uint64_t due) {
    c->due = due;
    if (heap_len == heap_cap) {
        heap_cap = heap_cap ? heap_cap * 2 : 1024;
        heap = realloc(heap, (size_t)heap_cap * sizeof *heap);
        if (!heap)
            abort();
    }
    heap_put(heap_len, c);
    heap_sift(heap_len++);
}

static void stop_waiting(Conn *c) {
    int i = c->heap_at;
    if (i < 0)
        return;
    c->heap_at = -1;
    if (i == --heap_len)
        return;
    heap_put(i, heap[heap_len]);
    heap_sift(i);
}

/* ------------------------------------------------------------------------------------- bytes, plain or over TLS */

/* Bytes read or written; 0: the peer closed; -1: would block; -2: lost. */
static ssize_t conn_read(Conn *c, char *data, size_t n) {
#ifdef TRUTH_TLS
    ERR_clear_error();
    int k = SSL_read(c->ssl, data, (int)n);
    if (k > 0)
        return k;
    int why = SSL_get_error(c->ssl, k);
    return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? -1 : why == SSL_ERROR_ZERO_RETURN ? 0 : -2;
#else
    ssize_t k = recv(c->fd, data, n, 0);
    return k >= 0 ? k : errno == EAGAIN || errno == EINTR ? -1 : -2;
#endif
}

static ssize_t conn_write(Conn *c, const char *data, size_t n) {
#ifdef TRUTH_TLS
    ERR_clear_error();
    int k = SSL_write(c->ssl, data, (int)n);
    if (k > 0)
        return k;
    int why = SSL_get_error(c->ssl, k);
    return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? -1 : -2;
#else
    ssize_t k = send(c->fd, data, n, MSG_NOSIGNAL);
    return k >= 0 ? k : errno == EAGAIN || errno == EINTR ? -1 : -2;
#endif
}

static void conn_free(Conn *c) {
    stop_waiting(c);
#ifdef TRUTH_TLS
    SSL_free(c->ssl);
#endif
    close(c->fd);
    free(c->in.data);
    free(c->out.data);
    free(c);
}

static void watch(Conn *c, bool for_room) {
    if (for_room == c->waiting_for_room)
        return;
    c->waiting_for_room = for_room;
    struct epoll_event e = {.events = EPOLLIN | (for_room ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
}

/* 1: all sent, 0: the kernel has no room, -1: lost */
static int flush(Conn *c) {
    while (c->out_sent < c->out.len) {
        ssize_t k = conn_write(c, c->out.data + c->out_sent, c->out.len - c->out_sent);
        if (k == -1) {
            watch(c, true);
            return 0;
        }
        if (k < 0)
            return -1;
        c->out_sent += (size_t)k;
    }
    c->out.len = c->out_sent = 0;
    watch(c, false);
    return 1;
}

/* ------------------------------------------------------------------------------------------------------ answers */

static void append_event(Conn *c, const char *choices, const char *tail) {
    char event[512], size[16];
    int n = snprintf(event, sizeof event,
                     "data: {\"id\":\"chatcmpl-truth\",\"object\":\"chat.completion.chunk\",\"created\":1764460800,"
                     "\"model\":\"truth\",\"choices\":[%s]%s}\n\n",
                     choices, tail);
    append(&c->out, size, (size_t)sprintf(size, "%x\r\n", n));
    append(&c->out, event, (size_t)n);
    append(&c->out, "\r\n", 2);
}

static void append_end(Conn *c) {
    char usage[128];
    append_event(c, "{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}", "");
    snprintf(usage, sizeof usage, ",\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":%ld,\"total_tokens\":%ld}",
             c->tokens_wanted, c->tokens_wanted + 1);
    append_event(c, "", usage);
    static const char done[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
    append(&c->out, done, sizeof done - 1);
}

static void read_requests(Conn *c);

/* The deadline of the next token has passed: write what is due. False: the connection is gone. */
static bool stream(Conn *c) {
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                               "transfer-encoding: chunked\r\n\r\n";
    uint64_t t = now();
    bool first = c->tokens_sent == 0;
    if (first) {
        append(&c->out, head, sizeof head - 1);
        append_event(c, "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}", "");
    }
    do { /* more than one only if this server is late itself */
        append_event(c, "{\"index\":0,\"delta\":{\"content\":\" tok\"},\"finish_reason\":null}", "");
        c->tokens_sent++;
    } while (!first && itl_ns && c->tokens_sent < c->tokens_wanted &&
             c->first_due + itl_ns * (uint64_t)c->tokens_sent <= t);
    if (c->tokens_sent == c->tokens_wanted)
        append_end(c);
    if (first)
        c->t_first_token = now();
    if (flush(c) < 0) {
        conn_free(c);
        return false;
    }
    return true;
}

/* After a write: wait for the next deadline, or for room, or end the request. */
static void proceed(Conn *c) {
    if (c->out.len)
        return;
    if (c->tokens_sent < c->tokens_wanted) {
        wait_until(c, itl_ns ? c->first_due + itl_ns * (uint64_t)c->tokens_sent : now());
        return;
    }
    if (log_file)
        fprintf(log_file, "%s,%llu,%llu,%llu,%llu,%ld\n", c->request_id, (unsigned long long)c->t_request,
                (unsigned long long)c->rx_wait_max, (unsigned long long)c->t_first_token, (unsigned long long)now(),
                c->tokens_sent);
    c->tokens_wanted = 0;
    read_requests(c);
}

/* ----------------------------------------------------------------------------------------------------- requests */

/* The value of header `name` (lower case, with its colon) in the NUL-terminated head, or NULL. */
static const char *header(const char *head, const char *name) {
    const char *at = strcasestr(head, name);
    if (!at)
        return NULL;
    at += strlen(name);
    return at + strspn(at, " ");
}

static long tokens_wanted(const char *body) {
    static const char *const names[] = {"\"max_completion_tokens\":", "\"max_tokens\":"};
    for (int i = 0; i < 2; i++) {
        const char *at = strstr(body, names[i]);
        long n = at ? strtol(at + strlen(names[i]), NULL, 10) : 0;
        if (n > 0)
            return n;
    }
    return 100;
}

/* `head` and `body` are NUL-terminated. */
static void answer(Conn *c, const char *head, const char *body) {
    if (!strncmp(head, "POST /v1/chat/completions ", 26)) {
        c->t_request = now();
        c->rx_wait_max = c->t_request - fresh_since;
        c->first_due = c->t_request + ttft_ns;
        c->tokens_wanted = tokens_wanted(body);
        c->tokens_sent = 0;
        const char *id = header(head, "\r\nx-request-id:");
        snprintf(c->request_id, sizeof c->request_id, "%.*s", id ? (int)strcspn(id, "\r") : 0, id ? id : "");
        wait_until(c, c->first_due);
        return;
    }
    static const char missing[] = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
    append(&c->out, missing, sizeof missing - 1);
    flush(c);
}

/* Answer what is complete in the buffer, one request at a time: the next one is looked at when this one has ended. */
static void read_requests(Conn *c) {
    while (!c->tokens_wanted && c->in.len) {
        char *end = memmem(c->in.data, c->in.len, "\r\n\r\n", 4);
        if (!end)
            return;
        *end = 0;
        const char *length = header(c->in.data, "\r\ncontent-length:");
        size_t body_at = (size_t)(end - c->in.data) + 4, body_len = length ? strtoul(length, NULL, 10) : 0;
        if (c->in.len < body_at + body_len) {
            *end = '\r';
            return;
        }
        reserve(&c->in, 1);
        char *body = c->in.data + body_at, after = body[body_len];
        body[body_len] = 0;
        answer(c, c->in.data, body);
        body[body_len] = after;
        c->in.len -= body_at + body_len;
        memmove(c->in.data, body + body_len, c->in.len);
    }
}

/* False: the connection is gone. */
static bool on_readable(Conn *c) {
    for (;;) {
        reserve(&c->in, 16384);
        ssize_t k = conn_read(c, c->in.data + c->in.len, c->in.cap - c->in.len);
        if (k == -1)
            break;
        if (k <= 0 || c->in.len > MAX_REQUEST) {
            conn_free(c);
            return false;
        }
        c->in.len += (size_t)k;
    }
    read_requests(c);
    return true;
}

static void accept_all(int listener) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK), one = 1;
        if (fd < 0)
            return;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        Conn *c = calloc(1, sizeof *c);
        if (!c)
            abort();
        c->fd = fd;
        c->heap_at = -1;
#ifdef TRUTH_TLS
        c->ssl = SSL_new(tls);
        SSL_set_fd(c->ssl, fd);
        SSL_set_accept_state(c->ssl);
#endif
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
    }
}

/* --------------------------------------------------------------------------------------------------------- main */

static void on_signal(int signal_number) {
    (void)signal_number;
    stopping = 1;
}

static int fail(const char *what) {
    fprintf(stderr, "sse_truth: %s\n", what);
    return 2;
}

int main(int argc, char **argv) {
    const char *cert = NULL, *key = NULL, *log_path = NULL;
    int port = 8100, one = 1;
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!value)
            return fail("an option has no value");
        if (!strcmp(name, "--port"))
            port = atoi(value);
        else if (!strcmp(name, "--ttft-ms"))
            ttft_ns = (uint64_t)(atof(value) * 1e6);
        else if (!strcmp(name, "--itl-ms"))
            itl_ns = (uint64_t)(atof(value) * 1e6);
        else if (!strcmp(name, "--log"))
            log_path = value;
        else if (!strcmp(name, "--cert"))
            cert = value;
        else if (!strcmp(name, "--key"))
            key = value;
        else
            return fail("options: --port --ttft-ms --itl-ms --log --cert --key");
    }
#ifdef TRUTH_TLS
    tls = SSL_CTX_new(TLS_server_method());
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (!cert || !key || SSL_CTX_use_certificate_chain_file(tls, cert) != 1 ||
        SSL_CTX_use_PrivateKey_file(tls, key, SSL_FILETYPE_PEM) != 1)
        return fail("--cert and --key must name PEM files");
#else
    if (cert || key)
        return fail("--cert and --key need a build with -DTRUTH_TLS");
#endif
    if (log_path) {
        log_file = fopen(log_path, "w");
        if (!log_file)
            return fail("the log cannot be written");
        setvbuf(log_file, NULL, _IOFBF, 1 << 20); /* no write() while a stream is being timed */
        fputs("request_id,t_request,rx_wait_max_ns,t_first_token,t_last,chunks\n", log_file);
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);

    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 8192))
        return fail(strerror(errno));
    epoll_fd = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &e);
    puts("ready");
    fflush(stdout);

    static struct epoll_event events[MAX_EVENTS];
    uint64_t last_return = now();
    while (!stopping) {
        struct timespec pause = {0, 0};
        uint64_t entered = now();
        if (heap_len && heap[0]->due > entered) {
            pause.tv_sec = (time_t)((heap[0]->due - entered) / 1000000000u);
            pause.tv_nsec = (long)((heap[0]->due - entered) % 1000000000u);
        }
        int n = epoll_pwait2(epoll_fd, events, MAX_EVENTS, heap_len ? &pause : NULL, NULL);
        uint64_t returned = now();
        fresh_since = returned - entered > FRESH_NS ? returned : last_return;
        last_return = returned;
        for (int i = 0; i < n; i++) {
            Conn *c = events[i].data.ptr;
            if (!c) {
                accept_all(listener);
                continue;
            }
            if (events[i].events & EPOLLOUT) {
                int sent = flush(c);
                if (sent < 0) {
                    conn_free(c);
                    continue;
                }
                if (sent && c->tokens_wanted)
                    proceed(c);
            }
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                on_readable(c);
        }
        uint64_t t = now(); /* fixed: what becomes due meanwhile waits for the next poll */
        while (heap_len && heap[0]->due <= t) {
            Conn *c = heap[0];
            stop_waiting(c);
            if (stream(c))
                proceed(c);
        }
    }
    if (log_file)
        fclose(log_file);
    return 0;
}
