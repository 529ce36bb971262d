/*
 * The whole initramfs: load the virtio modules, mount the disk, become the disk's own init.
 *
 * Debian's initramfs takes 5 s under emulation and would drown what is measured.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DISK "/dev/vda"
/* A disk that is not there after 10 s will not come. */
#define DISK_TIMEOUT_MS 10000

/* In the order in which they depend on each other. */
static const char *const modules[] = {
    "virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci",
    "virtio_blk",
};

/* Ends the first process, and with it the boot: the kernel's panic shows on the console. */
static void fail(const char *what)
{
    printf("mini-init: %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(1);
}

static void load_module(const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/modules/%s.ko", name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 && errno == ENOENT)
        return; /* built into this kernel */
    if (file < 0 || (syscall(SYS_finit_module, file, "", 0) != 0 && errno != EEXIST))
        fail(path);
    close(file);
}

static void wait_for_disk(void)
{
    int events = inotify_init1(IN_CLOEXEC);
    if (events < 0 || inotify_add_watch(events, "/dev", IN_CREATE) < 0)
        fail("watching /dev");
    while (access(DISK, F_OK) != 0) {
        char buffer[4096];
        struct pollfd ready = {.fd = events, .events = POLLIN};
        if (poll(&ready, 1, DISK_TIMEOUT_MS) <= 0 || read(events, buffer, sizeof buffer) <= 0)
            fail("waiting for " DISK);
    }
    close(events);
}

/* Returns what init= says on the kernel's command line. */
static char *chosen_init(void)
{
    static char line[4096];
    if (mount("proc", "/proc", "proc", 0, NULL) != 0)
        fail("mounting /proc");
    int file = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : read(file, line, sizeof line - 1);
    if (got < 0)
        fail("reading /proc/cmdline");
    close(file);
    umount("/proc");
    line[got] = '\0';
    for (char *word = strtok(line, " \n"); word != NULL; word = strtok(NULL, " \n"))
        if (strncmp(word, "init=", 5) == 0)
            return word + 5;
    return "/sbin/init";
}

int main(void)
{
    mkdir("/dev", 0755);
    mkdir("/proc", 0755);
    mkdir("/root", 0755);
    if (mount("devtmpfs", "/dev", "devtmpfs", 0, NULL) != 0)
        fail("mounting /dev");
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
        load_module(modules[i]);
    wait_for_disk();
    char *init = chosen_init();
    if (mount(DISK, "/root", "ext4", MS_NOATIME, NULL) != 0)
        fail("mounting " DISK);
    if (mount("/dev", "/root/dev", NULL, MS_MOVE, NULL) != 0)
        fail("moving /dev");
    if (chdir("/root") != 0 || mount(".", "/", NULL, MS_MOVE, NULL) != 0 || chroot(".") != 0)
        fail("entering the disk's root");
    execl(init, init, (char *)NULL);
    fail(init);
}
