//! Commands to `/dev/ublk-control`.

#![expect(
    unsafe_code,
    reason = "commands of a ring have addresses, which the compiler does not check"
)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use super::abi::{
    ANY_DEVICE, CMD_IOCTL_ENCODE, INFO_BYTES, MadeDevice, NewDevice, PARAMS_BYTES, Shape,
    USER_COPY, USER_RECOVERY, USER_RECOVERY_REISSUE,
};

const PATH: &str = "/dev/ublk-control";

/// What a device of this module takes of the driver.
const NEEDED: u64 = USER_RECOVERY | USER_RECOVERY_REISSUE | CMD_IOCTL_ENCODE | USER_COPY;

/// How long what only looks and changes nothing that others use may take.
const QUICK: Duration = Duration::from_secs(10);

/// `_IOR('u', nr, struct ublksrv_ctrl_cmd)`, and the same with `_IOWR`.
const fn reads(number: u32) -> u32 {
    2 << 30 | 32 << 16 | (b'u' as u32) << 8 | number
}
const fn writes(number: u32) -> u32 {
    1 << 30 | reads(number)
}

const ADD: u32 = writes(0x04);
const START: u32 = writes(0x06);
const STOP: u32 = writes(0x07);
const SET_PARAMS: u32 = writes(0x08);
const GET_PARAMS: u32 = reads(0x09);
const START_RECOVERY: u32 = writes(0x10);
const END_RECOVERY: u32 = writes(0x11);
const GET_INFO: u32 = reads(0x02);
const GET_FEATURES: u32 = reads(0x13);
const DELETE_LATER: u32 = reads(0x14);

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// The driver of ublk devices. It takes root.
pub struct Control {
    file: File,
    ring: Ring,
    /// Whether a command is still with the kernel.
    late: bool,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl Control {
    /// Opens it.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) if the kernel has no ublk, or its module is not loaded;
    /// [`Unsupported`](io::ErrorKind::Unsupported) if it is older than Linux 6.5.
    pub fn open() -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(PATH)?;
        let ring = IoUring::builder().build(4)?;
        let mut control = Self {
            file,
            ring,
            late: false,
        };
        let mut features = [0; 8];
        control.ask(GET_FEATURES, ANY_DEVICE, 0, &mut features, QUICK)?;
        if u64::from_ne_bytes(features) & NEEDED != NEEDED {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(control)
    }

    /// Makes a device, which is not there for users before it is started.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn add(&mut self, device: NewDevice) -> io::Result<MadeDevice> {
        let mut info = device.to_bytes();
        self.ask(ADD, ANY_DEVICE, 0, &mut info, QUICK)?;
        MadeDevice::from_bytes(&info)
    }

    /// Says what users will see of a device that was made.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_shape(&mut self, id: u32, shape: Shape) -> io::Result<()> {
        self.ask(SET_PARAMS, id, 0, &mut shape.to_bytes(), QUICK)
    }

    /// Returns what users see of a device.
    ///
    /// # Errors
    /// If there is none of this number.
    pub fn shape(&mut self, id: u32) -> io::Result<Shape> {
        let mut params = [0; PARAMS_BYTES];
        params[..4].copy_from_slice(&60_u32.to_ne_bytes()); // PARAMS_BYTES
        self.ask(GET_PARAMS, id, 0, &mut params, QUICK)?;
        Ok(Shape::from_bytes(&params))
    }

    /// Returns what there is to know of a device.
    ///
    /// # Errors
    /// If there is none of this number.
    pub fn info(&mut self, id: u32) -> io::Result<MadeDevice> {
        let mut info = [0; INFO_BYTES];
        self.ask(GET_INFO, id, 0, &mut info, QUICK)?;
        MadeDevice::from_bytes(&info)
    }

    /// Makes a device appear. All requests of its queues have been fetched by the process `server` before.
    ///
    /// # Errors
    /// If the kernel refuses, or it takes longer than `patience`.
    pub fn start(&mut self, id: u32, server: u32, patience: Duration) -> io::Result<()> {
        self.ask(START, id, server.into(), &mut [], patience)
    }

    /// Ends a device for its users: what they have in flight is answered by this process, and what they request then
    /// fails.
    ///
    /// # Errors
    /// If there is none of this number, or it takes longer than `patience`.
    pub fn stop(&mut self, id: u32, patience: Duration) -> io::Result<()> {
        self.ask(STOP, id, 0, &mut [], patience)
    }

    /// Removes a device that was stopped, as soon as its last user has closed it.
    ///
    /// # Errors
    /// If there is none of this number.
    pub fn delete(&mut self, id: u32) -> io::Result<()> {
        self.ask(DELETE_LATER, id, 0, &mut [], QUICK)
    }

    /// Begins to serve a device whose process ended. It is refused with `EBUSY` as long as that is not all gone.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn start_recovery(&mut self, id: u32) -> io::Result<()> {
        self.ask(START_RECOVERY, id, 0, &mut [], QUICK)
    }

    /// Has the device served from now on: what was in flight is requested again. All requests of its queues have been
    /// fetched by the process `server` before.
    ///
    /// # Errors
    /// If the kernel refuses, or it takes longer than `patience`.
    pub fn end_recovery(&mut self, id: u32, server: u32, patience: Duration) -> io::Result<()> {
        self.ask(END_RECOVERY, id, server.into(), &mut [], patience)
    }

    /// Executes a command: sends `buffer`, and returns there what the kernel answers.
    fn ask(
        &mut self,
        command: u32,
        id: u32,
        data: u64,
        buffer: &mut [u8],
        patience: Duration,
    ) -> io::Result<()> {
        if self.late {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let mut staged = buffer.to_vec();
        let len = u16::try_from(staged.len()).map_err(io::Error::other)?;
        // `struct ublksrv_ctrl_cmd`: device, queue, length, address, data.
        let mut bytes = [0; 80];
        bytes[0..4].copy_from_slice(&id.to_ne_bytes());
        bytes[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
        if len > 0 {
            let address = staged.as_mut_ptr().expose_provenance() as u64;
            bytes[6..8].copy_from_slice(&len.to_ne_bytes());
            bytes[8..16].copy_from_slice(&address.to_ne_bytes());
        }
        bytes[16..24].copy_from_slice(&data.to_ne_bytes());
        let entry = opcode::UringCmd80::new(Fd(self.file.as_raw_fd()), command);
        let entry = entry.cmd(bytes).build();
        // SAFETY: the address in the entry is that of `staged`, which has the length in the entry. It lives until the
        // command has completed: where that is not waited for, it is leaked.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(io::Error::other)?;
        let result = match self.completion(patience) {
            Ok(result) => result,
            Err(error) => {
                // The kernel may still write to it.
                self.late = true;
                staged.leak();
                return Err(error);
            }
        };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        buffer.copy_from_slice(&staged);
        Ok(())
    }

    /// Waits for the only command that is in flight.
    ///
    /// # Errors
    /// If it is not known what became of it, or it takes too long.
    fn completion(&mut self, patience: Duration) -> io::Result<i32> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(done) = self.ring.completion().next() {
                return Ok(done.result());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let timeout = Timespec::from(left);
            let args = SubmitArgs::new().timespec(&timeout);
            let waited = self.ring.submitter().submit_with_args(1, &args);
            if let Err(error) = waited
                && !matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR))
            {
                return Err(error);
            }
        }
    }
}
