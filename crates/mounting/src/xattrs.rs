//! Who is answered about extended attributes where there are none.

use yolofs::XattrAnswers;

/// Returns who is answered: everybody, or those who ask before an overlay does.
#[must_use]
pub const fn answers(all: bool) -> XattrAnswers {
    if all {
        XattrAnswers::Always
    } else {
        XattrAnswers::UntilOverlay
    }
}
