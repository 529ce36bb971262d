//! Files that have changed: how long the kernel knows their attributes, and who finds out that they change again.

use std::sync::Arc;
use std::time::Duration;

use blocks::FileId;

use super::convert::lifetime;
use crate::fs::FileSystem;

/// Returns how long the kernel may go on with what it is told of a file. It asks for the attributes of one that has
/// changed again and again; then somebody who may wait for the source looks at it, and this answer does not wait for
/// that.
pub(super) fn known_for(fs: &Arc<FileSystem>, file: FileId) -> Duration {
    if fs.begin_look(file) {
        match fs.waiter() {
            None => fs.look_again(file),
            Some(waiter) => {
                let (work, late) = (Arc::clone(fs), Arc::clone(fs));
                waiter.wait_for(
                    Box::new(move || work.look_again(file)),
                    Box::new(move |_error| late.end_look(file)),
                );
            }
        }
    }
    lifetime(fs.lifetime_of(file))
}
