//! Listings made by a waiter: collected first, because the reply belongs to the deadline's thread if it is late.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;

use blocks::{Attr, Caller, FileId, NodeKind};
use fuser::{ReplyDirectory, ReplyDirectoryPlus};

use super::convert::{file_attr, file_type, node};
use super::handles::Handles;
use crate::errno::errno;
use crate::fs::{DirItem, FileSystem, FsError};

/// Entries that are collected at most: some more than the kernel has room for. It asks for the rest.
const ENTRIES_MAX: usize = 256;

/// Stops a listing once the kernel has no room for more.
pub(super) fn stop_if(full: bool) -> ControlFlow<()> {
    match full {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
}

/// An entry with a name of its own.
pub(super) struct Item {
    name: Vec<u8>,
    file: FileId,
    kind: NodeKind,
    next: u64,
}

impl Item {
    fn of(item: DirItem<'_>) -> Self {
        Self {
            name: item.name.to_vec(),
            file: item.file,
            kind: item.kind,
            next: item.next,
        }
    }
}

pub(super) fn names(
    fs: &FileSystem,
    caller: Caller,
    dir: FileId,
    offset: u64,
) -> Result<Vec<Item>, FsError> {
    let mut items = Vec::new();
    fs.readdir(caller, dir, offset, &mut |item| {
        items.push(Item::of(item));
        stop_at_most(items.len())
    })?;
    Ok(items)
}

pub(super) fn nodes(
    fs: &FileSystem,
    caller: Caller,
    dir: FileId,
    offset: u64,
) -> Result<Vec<(Item, Attr)>, FsError> {
    let mut items = Vec::new();
    fs.readdirplus(caller, dir, offset, &mut |item, attr| {
        items.push((Item::of(item), attr));
        stop_at_most(items.len())
    })?;
    Ok(items)
}

pub(super) fn give_names(mut reply: ReplyDirectory, listed: Result<Vec<Item>, FsError>) {
    match listed {
        Ok(items) => {
            for item in &items {
                let (kind, name) = (file_type(item.kind), OsStr::from_bytes(&item.name));
                if reply.add(node(item.file), item.next, kind, name) {
                    break;
                }
            }
            reply.ok();
        }
        Err(error) => reply.error(errno(&error)),
    }
}

pub(super) fn give_nodes(
    handles: &Handles,
    mut reply: ReplyDirectoryPlus,
    listed: Result<Vec<(Item, Attr)>, FsError>,
) {
    match listed {
        Ok(items) => {
            for (item, attr) in &items {
                let (name, attr) = (OsStr::from_bytes(&item.name), file_attr(item.file, attr));
                let generation = handles.generation(item.file);
                let ttl = handles.known_for(item.file);
                if reply.add(node(item.file), item.next, name, &ttl, &attr, generation) {
                    break;
                }
            }
            reply.ok();
        }
        Err(error) => reply.error(errno(&error)),
    }
}

fn stop_at_most(len: usize) -> ControlFlow<()> {
    match len < ENTRIES_MAX {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    }
}
