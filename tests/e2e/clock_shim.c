/* Preloaded into a process under test: its wall clock reads what the machine's does plus the seconds that the file named
 * by CLOCK_SHIM_FILE holds, read anew at each call. Its other clocks are the machine's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long Offset(void) {
  const char* path = getenv("CLOCK_SHIM_FILE");
  char text[32] = "";
  const int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return 0;
  const ssize_t n = read(fd, text, sizeof(text) - 1);
  close(fd);
  return n > 0 ? atol(text) : 0;
}

int clock_gettime(clockid_t id, struct timespec* out) {
  static int (*real)(clockid_t, struct timespec*);
  if (!real) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int result = real(id, out);
  if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) out->tv_sec += Offset();
  return result;
}

int gettimeofday(struct timeval* out, void* zone) {
  (void)zone;
  struct timespec now;
  const int result = clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return result;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
