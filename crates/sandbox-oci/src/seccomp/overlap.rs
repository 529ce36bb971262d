//! Whether rules about one call contradict each other.

use oci_spec::runtime::{LinuxSeccompArg, LinuxSeccompOperator as Is};

use super::Action;

/// Returns whether two alternatives with different actions could both hold. It is not looked deeper than whether one
/// of them wants a value of an argument that the other excludes.
pub(super) fn is_ambiguous(alternatives: &[(Vec<LinuxSeccompArg>, Action)]) -> bool {
    alternatives
        .iter()
        .enumerate()
        .any(|(index, (one, action))| {
            let others = alternatives[..index].iter();
            let mut others = others.filter(|(_, other)| other != action);
            others.any(|(other, _)| !exclude(one, other) && !exclude(other, one))
        })
}

/// Returns whether conditions that want a certain value of an argument exclude others by that.
fn exclude(certain: &[LinuxSeccompArg], others: &[LinuxSeccompArg]) -> bool {
    let wants = certain.iter().filter(|arg| arg.op() == Is::ScmpCmpEq);
    let mut wants = wants.map(|arg| (arg.index(), arg.value()));
    wants.any(|(index, value)| {
        let of_it = others.iter().filter(|arg| arg.index() == index);
        of_it.into_iter().any(|arg| !holds(arg, value))
    })
}

/// Returns whether a condition holds for a value of its argument.
fn holds(condition: &LinuxSeccompArg, value: u64) -> bool {
    let wanted = condition.value();
    match condition.op() {
        Is::ScmpCmpEq => value == wanted,
        Is::ScmpCmpNe => value != wanted,
        Is::ScmpCmpLt => value < wanted,
        Is::ScmpCmpLe => value <= wanted,
        Is::ScmpCmpGt => value > wanted,
        Is::ScmpCmpGe => value >= wanted,
        Is::ScmpCmpMaskedEq => value & wanted == condition.value_two().unwrap_or(0),
    }
}
