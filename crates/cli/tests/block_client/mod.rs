//! A client of a device that reconnects, and knows what it has written: QEMU's driver of NBD.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Bytes of the device, and of each write.
const DEVICE: usize = 16 << 20;
const PIECE: usize = 16 << 10;

/// Longer than anything here takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

/// A `qemu-io` that writes to a device; ended when it is dropped.
pub(crate) struct Writer {
    program: Child,
    commands: Option<ChildStdin>,
    /// What it prints, line by line.
    said: Receiver<String>,
    written: Vec<u8>,
    number: usize,
    /// Writes that it has not said to be done.
    waiting: usize,
}

impl Writer {
    /// Connects to the device at `socket`, and waits until it has: QEMU connects again what was connected before, and
    /// gives up if the first server dies during the handshake.
    pub(crate) fn start(socket: &Path) -> Self {
        let options = format!(
            "driver=raw,file.driver=nbd,file.server.type=unix,file.server.path={},file.reconnect-delay=90",
            socket.display()
        );
        let mut program = Command::new("stdbuf")
            // It waits for each line by itself: one that is in a buffer already is not noticed.
            .args(["-i0", "-oL", "qemu-io", "--image-opts", &options])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let (tell, said) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        let commands = program.stdin.take();
        let mut writer = Self {
            program,
            commands,
            said,
            written: vec![0; DEVICE],
            number: 0,
            waiting: 0,
        };
        writer.flush();
        writer
    }

    fn command(&mut self, command: &str) {
        writeln!(self.commands.as_mut().unwrap(), "{command}").unwrap();
    }

    /// Begins so many writes, each with bytes of its own, over the device and over each other.
    pub(crate) fn write_without_waiting(&mut self, count: usize) {
        for _ in 0..count {
            self.number += 1;
            let at = self.number * 37 % (DEVICE / PIECE / 4) * PIECE;
            let byte = u8::try_from(self.number % 250 + 1).unwrap();
            // Two in flight to the same place would be done in any order.
            if self.number.is_multiple_of(DEVICE / PIECE / 4) {
                self.flush();
            }
            self.command(&format!("aio_write -P {byte} {at} {PIECE}"));
            self.written[at..at + PIECE].fill(byte);
            self.waiting += 1;
        }
    }

    /// Waits for all writes, flushes, and returns when the device has said that it is done.
    pub(crate) fn flush(&mut self) {
        self.command("aio_flush");
        self.command("flush");
        // Answered after the flush.
        self.command("read 0 512");
        loop {
            let line = self.next_line();
            assert!(!line.contains("failed"), "{line}");
            if line.contains(&format!("wrote {PIECE}/{PIECE}")) {
                self.waiting -= 1;
            }
            if line.contains("read 512/512") {
                break;
            }
        }
        assert_eq!(self.waiting, 0, "writes that were not answered");
    }

    fn next_line(&mut self) -> String {
        match self.said.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("no answer of the device in time"),
            Err(RecvTimeoutError::Disconnected) => {
                panic!("the client ended: {:?}", self.program.wait())
            }
        }
    }

    /// Ends it in order, and returns what is on the device.
    pub(crate) fn stop(mut self) -> Vec<u8> {
        self.flush();
        drop(self.commands.take());
        assert!(self.program.wait().unwrap().success());
        std::mem::take(&mut self.written)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // It may have ended.
        let _gone = self.program.kill();
        let _ended = self.program.wait();
    }
}
