//! A program whose memory is in pages of 4 KiB, though it asks for huge ones: QEMU always does, Firecracker does not.
//!
//! It matters for mapped files: around a page of a range that asked for huge pages, the kernel reads 2 MiB, and around others
//! what the device reads ahead, 128 KiB.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::Context as _;
use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// The word with which a bench becomes another program ([`become_program`]).
pub const WORD: &str = "in-small-pages";

/// Makes the kernel refuse huge pages to this process, and executes a program in its place.
///
/// # Errors
/// If there is no program, or the kernel refuses the filter or the program. It does not return otherwise.
pub fn become_program(words: &[impl AsRef<OsStr>]) -> anyhow::Result<()> {
    let (program, arguments) = words.split_first().context("no program is named")?;
    seccompiler::apply_filter(&refuse_huge_pages()?).context("filtering system calls")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("executing {}", program.as_ref().display()))
}

/// Lets all calls pass but `madvise(_, _, MADV_HUGEPAGE)`, which fails as on a kernel without huge pages.
fn refuse_huge_pages() -> anyhow::Result<BpfProgram> {
    let advice = u64::from(libc::MADV_HUGEPAGE.unsigned_abs());
    let asks = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, advice)?;
    let rules = BTreeMap::from([(libc::SYS_madvise, vec![SeccompRule::new(vec![asks])?])]);
    let refused = SeccompAction::Errno(libc::EINVAL.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, refused, arch)?.try_into()?)
}
