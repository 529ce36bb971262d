//! Memory of a machine that keeps its content, emulated by a file of ours: an NVDIMM, or a disk of
//! virtio-pmem.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::commands::done;

/// Modules that the kernel needs for both memories and for FUSE, in the order in which they depend
/// on each other.
pub(crate) const NVM_MODULES: [&str; 7] = [
    "drivers/nvdimm/libnvdimm",
    "drivers/nvdimm/nd_btt",
    "drivers/nvdimm/nd_pmem",
    "drivers/acpi/nfit/nfit",
    "drivers/nvdimm/nd_virtio",
    "drivers/nvdimm/virtio_pmem",
    "fs/fuse/fuse",
];

/// How it is plugged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NvmKind {
    /// A memory module: what programs write is durable when it has left their caches, and
    /// `MAP_SYNC` works.
    Nvdimm,
    /// A device of the host's, which has to be asked to make things durable: `MAP_SYNC` is refused.
    VirtioPmem,
}

/// A module, with an empty ext4 on it when it was made. What a machine writes there is in the file
/// at once, however the machine ends.
#[derive(Debug)]
pub(crate) struct Nvm {
    file: PathBuf,
    kind: NvmKind,
    mib: u64,
}

/// What the file system needs for DAX: blocks as large as pages.
const BLOCK: u64 = 4096;

/// Where a module's data begin, and to what the kernel aligns it: a huge page.
const ALIGN: u64 = 2 << 20;

impl Nvm {
    /// Makes one of some MiB.
    pub(crate) fn make(file: &Path, kind: NvmKind, mib: u64) -> anyhow::Result<Self> {
        let made = File::create(file).with_context(|| format!("making {}", file.display()))?;
        made.set_len(mib << 20)?;
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-F", "-b", &BLOCK.to_string()]);
        match kind {
            NvmKind::VirtioPmem => {
                done(mkfs.args(["-E", "nodiscard"]).arg(file))?;
            }
            NvmKind::Nvdimm => {
                let blocks = ((mib << 20) - ALIGN) / BLOCK;
                made.write_all_at(&info_block(blocks), INFO_AT)?;
                mkfs.args(["-E", &format!("nodiscard,offset={ALIGN}")]);
                done(mkfs.arg(file).arg(blocks.to_string()))?;
            }
        }
        Ok(Self {
            file: file.to_owned(),
            kind,
            mib,
        })
    }

    /// Returns where the only page of it with such content begins, counted from the first byte that a
    /// machine's device shows.
    pub(crate) fn find(&self, page: &[u8]) -> anyhow::Result<u64> {
        let all = fs::read(&self.file).context("reading a memory")?;
        let pages = (0..).step_by(page.len()).zip(all.chunks(page.len()));
        let mut found = pages.filter(|(_, there)| *there == page);
        let at = found.next().map(|(at, _)| at);
        ensure!(
            found.next().is_none(),
            "two pages of a memory have the same content"
        );
        let at: u64 = at.context("no page of the memory has this content")?;
        Ok(at - self.begin())
    }

    /// Writes bytes there, behind the back of a machine.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> anyhow::Result<()> {
        let file = File::options().write(true).open(&self.file)?;
        let written = file.write_all_at(bytes, self.begin() + at);
        written.context("changing a memory")
    }

    /// Where in the file the device begins.
    const fn begin(&self) -> u64 {
        match self.kind {
            NvmKind::Nvdimm => ALIGN,
            NvmKind::VirtioPmem => 0,
        }
    }

    /// Plugs it into a machine, which must have slots for memory.
    pub(crate) fn plug_into(&self, qemu: &mut Command) {
        let (name, driver) = match self.kind {
            NvmKind::Nvdimm => ("nvdimm", "nvdimm"),
            NvmKind::VirtioPmem => ("pmem", "virtio-pmem-pci"),
        };
        let (file, mib) = (self.file.display(), self.mib);
        let memory = format!("memory-backend-file,id={name},share=on,mem-path={file},size={mib}M");
        let device = format!("{driver},memdev={name}");
        qemu.args(["-object", &memory, "-device", &device]);
    }
}

/// Has a machine that is to be started take modules.
pub(crate) fn with_slots(qemu: &mut Command) {
    qemu.args(["-machine", "nvdimm=on", "-m", "slots=2,maxmem=4G"]);
}

/// Where the kernel looks for the information block.
const INFO_AT: u64 = 4096;

/// Its length.
const INFO_LEN: usize = 4096;

/// Returns the information block that has Linux use a module as `fsdax`, with so many pages of
/// data: `struct nd_pfn_sb`, version 1.4, of `drivers/nvdimm/pfn.h`. Without it the kernel has no
/// structures for the module's pages, and DAX is refused. `ndctl create-namespace` writes the same.
fn info_block(pages: u64) -> [u8; INFO_LEN] {
    // The kernel keeps the structures in ordinary memory, and not on the module.
    const IN_MEMORY: u32 = 1;
    const STRUCT_PAGE: u16 = 64;
    let mut block = [0; INFO_LEN];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"NVDIMM_PFN_INFO\0");
    put(16, b"yolofs test nvm."); // a UUID of its own; that of a parent stays zero
    put(52, &1_u16.to_le_bytes());
    put(54, &4_u16.to_le_bytes());
    put(56, &ALIGN.to_le_bytes());
    put(64, &pages.to_le_bytes());
    put(72, &IN_MEMORY.to_le_bytes());
    let align = u32::try_from(ALIGN).unwrap_or(u32::MAX);
    put(84, &align.to_le_bytes());
    let page = u32::try_from(BLOCK).unwrap_or(u32::MAX);
    put(88, &page.to_le_bytes());
    put(92, &STRUCT_PAGE.to_le_bytes());
    let sum = fletcher64(&block);
    block[INFO_LEN - 8..].copy_from_slice(&sum.to_le_bytes());
    block
}

/// Returns the kernel's checksum of a block.
fn fletcher64(block: &[u8]) -> u64 {
    let (mut low, mut high) = (0_u32, 0_u64);
    let (words, _) = block.as_chunks::<4>();
    for word in words {
        low = low.wrapping_add(u32::from_le_bytes(*word));
        high = high.wrapping_add(u64::from(low));
    }
    (high << 32) | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_that_of_the_kernel() {
        // Two words: low sums to 3, high to 1 and then 4.
        assert_eq!(fletcher64(&[1, 0, 0, 0, 2, 0, 0, 0]), (4 << 32) | 3);
        let block = info_block(1000);
        let kept = u64::from_le_bytes(block[4088..].try_into().unwrap());
        let mut zeroed = block;
        zeroed[4088..].fill(0);
        assert_eq!(kept, fletcher64(&zeroed));
        assert_eq!(&block[64..72], &1000_u64.to_le_bytes());
    }
}
