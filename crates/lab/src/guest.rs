//! The light guest of `scripts/images/light.sh`: a machine that boots in some seconds under emulation, reads a part of
//! its disk, says so on its console, and answers what it is told there.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use super::{images, ok, until};

/// From one line of a guest to the next, when sixteen boot at once on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// What a guest runs on.
pub const QEMU: &str = "qemu-system-x86_64";

/// What the guest's kernel is told.
const WORDS: &str = "console=ttyS0 loglevel=1 nowatchdog no_timer_check panic=-1 mitigations=off";

/// Kernel, initramfs and disk of the light guest, in a directory.
#[derive(Debug)]
pub struct LightImage {
    dir: PathBuf,
}

impl LightImage {
    /// Unpacks it.
    pub fn unpack(dir: &Path) -> Self {
        let archive = images().join("light.tar");
        assert!(
            archive.exists(),
            "{} is missing: run scripts/images/light.sh",
            archive.display()
        );
        fs::create_dir_all(dir).unwrap();
        ok(Command::new("tar")
            .arg("-xf")
            .arg(&archive)
            .arg("-C")
            .arg(dir));
        Self {
            dir: dir.to_owned(),
        }
    }

    /// Returns the disk, which has 24 MiB and is not to be written to.
    pub fn disk(&self) -> PathBuf {
        self.dir.join("disk.raw")
    }

    /// Returns the arguments of a machine whose console is standard output, without its disk, and a word more for its
    /// kernel.
    pub fn machine(&self, word: &str) -> Vec<String> {
        // `cmpxchg16b` of QEMU 7.2 may leave wrong flags, which kills one boot of Linux 6.12 in four.
        let fixed = "-nodefaults -no-user-config -accel tcg,thread=multi -cpu qemu64,+rdrand,-cx16 -machine q35 \
                     -display none -no-reboot -serial stdio -m 96,slots=2,maxmem=1G";
        let kernel = self.dir.join("vmlinuz").display().to_string();
        let initrd = self.dir.join("initrd.img").display().to_string();
        let files = ["-kernel".into(), kernel, "-initrd".into(), initrd];
        let words = ["-append".into(), format!("{WORDS} {word}")];
        let fixed = fixed.split_whitespace().map(str::to_owned);
        fixed.chain(files).chain(words).collect()
    }
}

/// Returns the arguments of a virtio disk that is not written to.
pub fn disk(file: &str, cache: &str) -> Vec<String> {
    let drive = format!("if=none,id=disk,format=raw,snapshot=on,cache={cache},file={file}");
    let device = "virtio-blk-pci,drive=disk";
    ["-drive", &drive, "-device", device]
        .map(str::to_owned)
        .into()
}

/// Returns the words of a shell command, quoted.
pub fn shell(args: &[String]) -> String {
    let quoted = args.iter().map(|arg| match arg.contains('$') {
        true => format!("\"{arg}\""),
        false => format!("'{arg}'"),
    });
    let args: Vec<_> = quoted.collect();
    format!("exec qemu-system-x86_64 {}", args.join(" "))
}

/// A guest that is on. It is ended when this is dropped.
#[derive(Debug)]
pub struct LightGuest {
    child: Child,
    lines: Receiver<String>,
}

impl LightGuest {
    /// Turns it on.
    pub fn start(args: &[String]) -> Self {
        Self::start_by(Command::new(QEMU), args)
    }

    /// Turns it on by a command that becomes [`QEMU`], with these arguments.
    pub fn start_by(mut qemu: Command, args: &[String]) -> Self {
        let mut child = qemu
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("QEMU is missing: scripts/test.sh installs it");
        let out = BufReader::new(child.stdout.take().unwrap());
        let (say, lines) = channel();
        std::thread::spawn(move || {
            let lines = out.split(b'\n').map_while(Result::ok);
            // Nobody listens any more when the guest is being ended.
            let lines = lines.map(|line| String::from_utf8_lossy(&line).trim().to_owned());
            lines.map_while(|line| say.send(line).ok()).for_each(drop);
        });
        Self { child, lines }
    }

    /// Waits for a line that has this in it, and returns what comes after it.
    pub fn must_say(&self, wanted: &str) -> String {
        let mut heard = Vec::new();
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|error| panic!("{error}; the guest said {heard:?}"));
            if let Some((_, rest)) = line.split_once(wanted) {
                return rest.trim().to_owned();
            }
            heard.push(line);
        }
    }

    /// Types a line on its console.
    pub fn tell(&mut self, line: &str) {
        let console = self.child.stdin.as_mut().unwrap();
        writeln!(console, "{line}").unwrap();
        console.flush().unwrap();
    }
}

impl Drop for LightGuest {
    fn drop(&mut self) {
        // One that has ended by itself is as well.
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}

/// QEMU's monitor, as far as it saves a machine's state.
#[derive(Debug)]
pub struct Monitor {
    answers: BufReader<UnixStream>,
}

impl Monitor {
    /// Connects to one that listens, and greets it.
    pub fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut monitor = Self {
            answers: BufReader::new(stream),
        };
        monitor.answer(|line| line["QMP"].is_object());
        monitor.execute(&json!({ "execute": "qmp_capabilities" }));
        monitor
    }

    /// Writes the state of the machine to a file. It runs until that is nearly done, and is stopped from then on.
    pub fn save(&mut self, state: &Path) {
        // Whole when it has its name: QEMU may say that it is done before `cat` is.
        let (part, whole) = (state.with_extension("part"), state.display());
        let part = part.display();
        let uri = format!("exec:cat > {part} && mv {part} {whole}");
        self.execute(&json!({ "execute": "migrate", "arguments": { "uri": uri } }));
        until("the state of a machine", || state.exists());
    }

    fn execute(&mut self, request: &Value) {
        writeln!(self.answers.get_mut(), "{request}").unwrap();
        let answer = self.answer(|line| line["event"].is_null());
        assert!(answer["error"].is_null(), "{request}: {answer}");
    }

    /// Returns the next line that is the one that is waited for.
    fn answer(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let mut line = String::new();
            let len = self.answers.read_line(&mut line).unwrap();
            assert!(len > 0, "QEMU ended");
            let line: Value = serde_json::from_str(&line).unwrap();
            if wanted(&line) {
                return line;
            }
        }
    }
}
