//! Many machines at once, restored machines, and machines that boot from memory, with light guests.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod tight;

use std::fs;
use std::path::Path;
use std::process::Command;

use lab::counted::{CountedDisk, DiskReads};
use lab::guest::{LightGuest, LightImage, Monitor, QEMU, disk, shell};
use lab::{Lab, json, ok};
use tight::Tight;

/// What the guest says when it has read its part of the disk.
const READY: &str = "LIGHT-READY";
/// Machines at once. The paper has 16, and so has `bench-yolo`; each costs seconds of a processor here.
const MACHINES: usize = 4;
/// Injected pages are kept, and nothing is read around others: what comes from the disk is what was asked for.
const PREWARMED: &[&str] = &[
    "--mode",
    "disk",
    "--wait-prewarm",
    "--lock",
    "--readahead",
    "0",
];

/// Records what a machine reads of a file until it says this.
fn record_light(mut bootimg: Command, file: &Path, until: &str, machine: &[String]) {
    let report = json(
        bootimg
            .args(["record", "--json", "--name", "light", "--timeout", "300"])
            .args(["--until", &format!("line:{until}")])
            .arg(file)
            .args(["--", "sh", "-c", &shell(machine)]),
    );
    assert!(report["bytes"].as_u64().unwrap() > 8 << 20, "{report}");
}

/// A lab whose images and store lie on a disk of their own.
struct CountedLab {
    lab: Lab,
    disk: CountedDisk,
}

impl CountedLab {
    fn new() -> Self {
        let lab = Lab::new();
        let disk = CountedDisk::make(&lab.path("disk.ext4"), 1024, &lab.path("disk"));
        Self { lab, disk }
    }

    fn with_store(&self, mut command: Command) -> Command {
        command.env("YOLOFS_STORE", self.lab.path("disk/store"));
        command
    }

    fn bootimg(&self) -> Command {
        self.with_store(self.lab.bootimg())
    }

    fn mount(&self, source: &Path) -> std::path::PathBuf {
        let mountpoint = self.lab.make_dir("mnt");
        let mut mount = self.with_store(self.lab.yolofs());
        ok(mount
            .arg("mount")
            .args([source, &mountpoint])
            .args(PREWARMED));
        mountpoint
    }

    /// Mounts a source that is on the cold disk, boots one machine of each of these images of it at once, and returns
    /// what was read of the disk until all were ready.
    fn boot_cold(&mut self, image: &LightImage, source: &str, disks: &[String]) -> DiskReads {
        self.disk.make_cold();
        let mountpoint = self.mount(&self.lab.path("disk").join(source));
        let mounted = self.disk.reads();
        let guests: Vec<_> = disks
            .iter()
            .map(|name| {
                let mut args = image.machine("");
                let file = mountpoint.join(name).display().to_string();
                args.extend(disk(&file, "writeback"));
                LightGuest::start(&args)
            })
            .collect();
        let sums: Vec<_> = guests.iter().map(|guest| guest.must_say(READY)).collect();
        let reads = self.disk.reads();
        let status = self.lab.status(&mountpoint);
        assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
        drop(guests);
        self.lab.umount(&mountpoint);
        println!(
            "{source}: {mounted:?}, then {reads:?}, {}",
            status["served"]
        );
        reads
    }
}

fn assert_as_one(one: DiskReads, many: DiskReads) {
    assert!(one.bytes > 8 << 20, "the disk was not cold: {one:?}");
    assert!(
        many.bytes * 20 <= one.bytes * 21,
        "one: {one:?}, {MACHINES}: {many:?}"
    );
}

#[test]
fn privileged_many_machines_read_the_disk_once() {
    let mut lab = CountedLab::new();
    let image = LightImage::unpack(&lab.lab.path("light"));
    let clone = |lab: &CountedLab, dir: &str, name: &str| {
        let dir = lab.lab.make_dir(&format!("disk/{dir}"));
        fs::copy(image.disk(), dir.join(name)).unwrap();
    };
    clone(&lab, "one", "base.raw");
    let names: Vec<_> = (1..=MACHINES)
        .map(|number| format!("{number:02}.raw"))
        .collect();
    for name in &names {
        clone(&lab, "clones", name);
    }
    let mut machine = image.machine("");
    machine.extend(disk("$YOLOFS_IMAGE", "writeback"));
    let base = lab.lab.path("disk/one/base.raw");
    record_light(lab.bootimg(), &base, READY, &machine);
    // A directory of clones is compared with what was recorded when it is mounted first.
    for dir in ["one", "clones"] {
        let mountpoint = lab.mount(&lab.lab.path("disk").join(dir));
        lab.lab.umount(&mountpoint);
    }
    let one = lab.boot_cold(&image, "one", &["base.raw".to_owned()]);
    let of_one_base = vec!["base.raw".to_owned(); MACHINES];
    assert_as_one(one, lab.boot_cold(&image, "one", &of_one_base));
    assert_as_one(one, lab.boot_cold(&image, "clones", &names));
}

#[test]
fn privileged_a_machine_is_restored_from_a_mounted_snapshot() {
    let lab = Lab::new();
    let image = LightImage::unpack(&lab.path("light"));
    let base = image.disk().display().to_string();
    let state = lab.make_dir("snapshots").join("vm.state");
    let mut args = image.machine("");
    args.extend(disk(&base, "writeback"));
    let monitor = lab.path("monitor");
    let chardev = format!(
        "socket,id=control,server=on,wait=off,path={}",
        monitor.display()
    );
    let mut saved = args.clone();
    saved.extend(["-chardev", &chardev, "-mon", "chardev=control,mode=control"].map(str::to_owned));
    let guest = LightGuest::start(&saved);
    let sum = guest.must_say(READY);
    Monitor::connect(&monitor).save(&state);
    drop(guest);

    let restored = |file: &str| {
        let incoming = ["-incoming".to_owned(), format!("exec:cat {file}")];
        [&args[..], &incoming].concat()
    };
    record_light(
        lab.bootimg(),
        &state,
        "LIGHT-IDLE",
        &restored("$YOLOFS_IMAGE"),
    );
    let mountpoint = lab.mount(&state, "mnt", PREWARMED);
    let before = lab.status(&mountpoint);
    let mounted = mountpoint.join("vm.state").display().to_string();
    let mut guest = LightGuest::start(&restored(&mounted));
    // It goes on where it was, and does not boot.
    assert_eq!(guest.must_say("LIGHT-"), "IDLE");
    guest.tell("again");
    assert_eq!(guest.must_say("LIGHT-ANSWER"), sum);
    let after = lab.status(&mountpoint);
    let fell = |status: &serde_json::Value| status["served"]["fallthrough_bytes"].as_u64().unwrap();
    assert_eq!(fell(&after) - fell(&before), 0, "{after}");
    drop(guest);
    lab.umount(&mountpoint);
}

#[test]
fn privileged_a_machine_boots_from_memory_without_a_block_request() {
    let lab = Lab::new();
    let image = LightImage::unpack(&lab.path("light"));
    let machine = |file: &str| {
        let backend =
            format!("memory-backend-file,id=pmem,mem-path={file},size=24M,share=off,readonly=on");
        let device = "virtio-pmem-pci,memdev=pmem";
        let mut args = image.machine("light.disk=/dev/pmem0");
        args.extend(["-object", &backend, "-device", device].map(str::to_owned));
        args
    };
    record_light(
        lab.bootimg(),
        &image.disk(),
        READY,
        &machine("$YOLOFS_IMAGE"),
    );
    let mountpoint = lab.mount(&image.disk(), "mnt", PREWARMED);
    let before = lab.status(&mountpoint);
    let mut guest = LightGuest::start(&machine(&mountpoint.join("disk.raw").display().to_string()));
    let sum = guest.must_say(READY);
    let after = lab.status(&mountpoint);
    // Its file system is mapped, and what it maps is in memory already: nobody asks for anything.
    for what in ["fallthrough_bytes", "requests"] {
        let reads = |status: &serde_json::Value| match what {
            "requests" => status["served"][what]["read"].as_u64().unwrap_or(0),
            _ => status["served"][what].as_u64().unwrap(),
        };
        assert_eq!(reads(&after) - reads(&before), 0, "{what}: {after}");
    }
    guest.tell("again");
    assert_eq!(guest.must_say("LIGHT-ANSWER"), sum);
    guest.tell("mounts");
    let mounts = guest.must_say("LIGHT-ANSWER");
    assert!(
        mounts.contains("/dev/pmem0") && mounts.contains("dax=always"),
        "{mounts}"
    );
    drop(guest);
    lab.umount(&mountpoint);
}

/// Calls libvirt's hook as libvirt does.
fn call_hook(lab: &Lab, operation: &[&str], xml: &str) {
    let hook = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/libvirt/qemu");
    let programs = Path::new(env!("CARGO_BIN_EXE_yolofs")).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut child = Command::new(hook)
        .arg("web")
        .args(operation)
        .arg("-")
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("YOLOFS_STORE", lab.store())
        .env("YOLOFS_RUN_DIR", lab.run_dir())
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // One that has nothing to do does not read it.
    let _read = std::io::Write::write_all(&mut stdin, xml.as_bytes());
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

#[test]
fn privileged_the_hook_of_libvirt_prewarms_what_a_domain_boots_from() {
    let lab = Lab::new();
    let source = lab.make_dir("it's & images").join("base.raw");
    fs::write(&source, lab::noise(1, 4 << 20)).unwrap();
    let read = "exec dd if=\"$YOLOFS_IMAGE\" of=/dev/null bs=64k count=16 status=none";
    let record = ["record", "--name", "base"];
    ok(lab
        .bootimg()
        .args(record)
        .arg(&source)
        .args(["--", "sh", "-c", read]));
    let mountpoint = lab.mount(&source, "mnt", &["--no-inject"]);
    let overlay = lab.path("over<lay.qcow2");
    let base = mountpoint.join("base.raw");
    let mut create = Command::new("qemu-img");
    create.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]);
    ok(create.arg(&base).arg(&overlay));
    let escaped = overlay.display().to_string().replace('<', "&lt;");
    let domain = |format: &str| {
        format!(
            "<domain type='qemu'>\n  <disk type='file' device='disk'>\n    <driver name='qemu' type='{format}' \
             cache='none'/>\n    <source file='{escaped}' index='1'/>\n  </disk>\n</domain>\n"
        )
    };
    let injected = |lab: &Lab| {
        lab.status(&mountpoint)["boot"]["injected_pages"]
            .as_u64()
            .unwrap()
    };
    call_hook(&lab, &["started", "begin"], &domain("qcow2"));
    call_hook(&lab, &["prepare", "begin"], "<domain/>");
    // What a guest wrote to its raw disk names no files.
    call_hook(&lab, &["prepare", "begin"], &domain("raw"));
    assert_eq!(injected(&lab), 0);
    call_hook(&lab, &["prepare", "begin"], &domain("qcow2"));
    assert_eq!(injected(&lab), 256, "{}", lab.status(&mountpoint)["boot"]);
    lab.umount(&mountpoint);
}

/// Memory that QEMU and the guest touch until it is ready has 149 MiB; the guest's is a file of the disk, which the kernel writes
/// back as long as it does not fit.
const LITTLE_MEMORY: u64 = 108 << 20;

/// The pages of its disk are pushed by the daemon, which is in no such group, and are not what it runs out of.
#[test]
fn privileged_a_machine_with_less_memory_than_its_boot_takes_boots_right() {
    let lab = Lab::new();
    let image = LightImage::unpack(&lab.path("light"));
    let machine = |file: &str, ram: &str| {
        let mut args = image.machine("");
        let ram = lab.path(ram).display().to_string();
        let backend = format!("memory-backend-file,id=ram,size=96M,share=on,mem-path={ram}");
        // Emulation takes 128 MiB otherwise, none of which the kernel could take back.
        for (option, value) in [
            ("-accel", "tcg,thread=multi,tb-size=16"),
            ("-machine", "q35,memory-backend=ram"),
            ("-m", "96"),
        ] {
            let at = args.iter().position(|word| word == option).unwrap();
            value.clone_into(&mut args[at + 1]);
        }
        args.extend(["-object".to_owned(), backend]);
        args.extend(disk(file, "writeback"));
        args
    };
    let native = image.disk().display().to_string();
    let sum = LightGuest::start(&machine(&native, "native")).must_say(READY);
    record_light(
        lab.bootimg(),
        &image.disk(),
        READY,
        &machine("$YOLOFS_IMAGE", "recorded"),
    );
    let mountpoint = lab.mount(&image.disk(), "mnt", PREWARMED);
    let before = lab.status(&mountpoint);
    let tight = Tight::new();
    tight.limit_memory(LITTLE_MEMORY);
    let mounted = mountpoint.join("disk.raw").display().to_string();
    let mut guest = LightGuest::start_by(tight.enter(QEMU), &machine(&mounted, "tight"));
    assert_eq!(guest.must_say(READY), sum);
    guest.tell("again");
    assert_eq!(guest.must_say("LIGHT-ANSWER"), sum);
    let (met, killed) = tight.met_limit();
    assert!(met > 0 && killed == 0, "met {met} times, {killed} killed");
    drop(guest);
    let after = lab.status(&mountpoint);
    assert_eq!(after["pid"], before["pid"], "the daemon lives");
    let fell = |status: &serde_json::Value| status["served"]["fallthrough_bytes"].as_u64().unwrap();
    let (elsewhere, recorded) = (
        fell(&after) - fell(&before),
        after["boot"]["blocks"].as_u64().unwrap() * 4096,
    );
    // On a busy machine a boot reads some pages that the recorded ones did not.
    assert!(
        elsewhere * 100 <= recorded,
        "{elsewhere} of {recorded}: {after}"
    );
    // What the guest read and what it did not is what the disk has.
    assert!(fs::read(mountpoint.join("disk.raw")).unwrap() == fs::read(image.disk()).unwrap());
    lab.umount(&mountpoint);
}

/// Whatever its disks do, a domain waits for the hook no longer than for all of it.
#[test]
fn privileged_the_hook_of_libvirt_gives_up_on_disks_that_do_not_answer() {
    use std::os::unix::fs::PermissionsExt;

    const DISKS: usize = 20;
    let lab = Lab::new();
    let (bin, asked) = (lab.make_dir("bin"), lab.path("asked"));
    let slow = bin.join("qemu-img");
    let text = format!("#!/bin/sh\necho >> {}\nexec sleep 2\n", asked.display());
    fs::write(&slow, text).unwrap();
    fs::set_permissions(&slow, PermissionsExt::from_mode(0o755)).unwrap();
    let disk = "<disk>\n<driver name='qemu' type='qcow2'/>\n<source file='/a'/>\n</disk>\n";
    let hook = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/libvirt/qemu");
    let xml = lab.path("domain.xml");
    fs::write(&xml, disk.repeat(DISKS)).unwrap();
    let ended = Command::new(hook)
        .args(["web", "prepare", "begin", "-"])
        .env(
            "PATH",
            format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()),
        )
        .env("YOLOFS_HOOK_PATIENCE", "2")
        .stdin(fs::File::open(&xml).unwrap())
        .status()
        .unwrap();
    assert!(ended.success(), "or the domain would not start");
    let asked = fs::read_to_string(&asked).unwrap().lines().count();
    assert!((1..DISKS / 2).contains(&asked), "{asked} were asked");
}
