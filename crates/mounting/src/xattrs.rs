//! Whether requests for extended attributes are answered where no file has any.

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
