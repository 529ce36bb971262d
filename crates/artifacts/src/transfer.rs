//! A transfer to or from a registry, watched.

use std::ops::ControlFlow;

use host::interrupt::Interrupt;
use host::progress::Bar;

/// Returns a watch of a transfer that moves `bar` and stops at Ctrl-C.
pub(crate) fn transfer<'a>(
    bar: &'a Bar,
    interrupt: &'a Interrupt,
) -> impl FnMut(u64) -> ControlFlow<()> + 'a {
    move |done| {
        bar.set_position(done);
        if interrupt.asked() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}
