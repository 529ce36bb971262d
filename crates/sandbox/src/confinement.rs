//! What keeps programs in: filters of system calls, and a ruleset of Landlock.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rawio::child::{Instruction, Step};

use crate::error::{Result, step};
use crate::network::Network;

/// The filter and the ruleset that every program gets; made once.
#[derive(Debug)]
pub(crate) struct Confinement {
    pub(crate) filter: Arc<[Instruction]>,
    /// Keeps a program that shares the machine's network from its abstract sockets, if Landlock can.
    scope: Option<OwnedFd>,
}

impl Confinement {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            filter: instructions(confine::guest::own()?).into(),
            scope: confine::guest::scope()?,
        })
    }

    /// The ruleset, for a program with this network.
    pub(crate) fn scope_of(&self, network: Network) -> Option<BorrowedFd<'_>> {
        let scope = self.scope.as_ref().map(OwnedFd::as_fd);
        scope.filter(|_| network == Network::Host)
    }

    /// The filter as bytes in hexadecimal digits, for a process that applies it itself.
    pub(crate) fn filter_text(&self) -> String {
        let bytes = self.filter.iter().flat_map(|at| {
            let [a, b] = at.code.to_le_bytes();
            let [c, d, e, f] = at.operand.to_le_bytes();
            [a, b, at.jump_true, at.jump_false, c, d, e, f]
        });
        bytes.map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Drops rights of the calling thread that neither it nor the programs that it starts need: they inherit
/// this, so it is done once, and not by each of them.
pub(crate) fn confine_starter() -> Result<()> {
    let filters = confine::guest::inherited()?;
    let filters: Vec<_> = filters.into_iter().map(instructions).collect();
    let mut steps = vec![Step::EmptyBoundingSet];
    steps.extend(filters.iter().map(|filter| Step::Filter(filter)));
    rawio::child::take_own_steps(&steps).map_err(step("confining a thread"))
}

fn instructions(filter: Vec<confine::guest::Instruction>) -> Vec<Instruction> {
    let convert = |(code, jump_true, jump_false, operand)| Instruction {
        code,
        jump_true,
        jump_false,
        operand,
    };
    filter.into_iter().map(convert).collect()
}
