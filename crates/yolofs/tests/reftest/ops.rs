//! What is done to the file system.

use blocks::Seek;
use proptest::prelude::*;
use proptest::sample::Index;
use yolofs::CachePath;

use crate::model::{Content, Rights, any_content, any_name, any_rights};

/// One thing to do; what it is done to is chosen among what there is.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Lookup {
        dir: Index,
        name: Vec<u8>,
    },
    LookupTooLong {
        dir: Index,
    },
    GetAttr {
        file: Index,
    },
    ReadLink {
        file: Index,
    },
    /// Lists a directory in requests that take so many entries each.
    List {
        file: Index,
        take: usize,
        plus: bool,
    },
    Read {
        file: Index,
        offset: u64,
        len: usize,
        path: CachePath,
    },
    Seek {
        file: Index,
        offset: u64,
        what: Seek,
    },
    GetXattr {
        file: Index,
        name: Vec<u8>,
        room: Room,
    },
    ListXattr {
        file: Index,
        room: Room,
    },
    Access {
        file: Index,
        mask: i32,
    },
    Open {
        file: Index,
    },
    StatFs,
    /// Another program changes a file of the source, or puts another in its place.
    Change {
        file: Index,
        content: Content,
        rights: Rights,
    },
    /// Another program changes who may pass a directory of the source.
    ChangeDir {
        dir: Index,
        rights: Rights,
    },
    /// Somebody puts blocks of a file, as it was scanned, into the cache.
    Record {
        file: Index,
        offset: u64,
        len: usize,
    },
}

/// How large a buffer is, beside what has to go into it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Room {
    /// The question is how much there is.
    None,
    Short,
    Exact,
    Plenty,
}

impl Room {
    pub(crate) fn beside(self, len: usize) -> u32 {
        let len = u32::try_from(len).unwrap();
        match self {
            Self::None => 0,
            Self::Short => len.saturating_sub(1),
            Self::Exact => len,
            Self::Plenty => len + 100,
        }
    }
}

pub(crate) fn any_operation() -> impl Strategy<Value = Operation> {
    let index = any::<Index>;
    let offset = || prop_oneof![0..25_000_u64, (0..6_u64).prop_map(|block| block * 4096)];
    let what = prop_oneof![Just(Seek::Data), Just(Seek::Hole)];
    let path = prop_oneof![Just(CachePath::Through), Just(CachePath::Around)];
    let rooms = vec![Room::None, Room::Short, Room::Exact, Room::Plenty];
    let room = || prop::sample::select(rooms.clone());
    prop_oneof![
        4 => (index(), any_name()).prop_map(|(dir, name)| Operation::Lookup { dir, name }),
        1 => index().prop_map(|dir| Operation::LookupTooLong { dir }),
        3 => index().prop_map(|file| Operation::GetAttr { file }),
        1 => index().prop_map(|file| Operation::ReadLink { file }),
        3 => (index(), 1..6_usize, any::<bool>())
            .prop_map(|(file, take, plus)| Operation::List { file, take, plus }),
        8 => (index(), offset(), 0..9000_usize, path)
            .prop_map(|(file, offset, len, path)| Operation::Read { file, offset, len, path }),
        2 => (index(), offset(), what)
            .prop_map(|(file, offset, what)| Operation::Seek { file, offset, what }),
        2 => (index(), any_name(), room())
            .prop_map(|(file, name, room)| Operation::GetXattr { file, name, room }),
        1 => (index(), room()).prop_map(|(file, room)| Operation::ListXattr { file, room }),
        1 => (index(), 0..8_i32).prop_map(|(file, mask)| Operation::Access { file, mask }),
        1 => index().prop_map(|file| Operation::Open { file }),
        1 => Just(Operation::StatFs),
        3 => (index(), any_content(), any_rights())
            .prop_map(|(file, content, rights)| Operation::Change { file, content, rights }),
        1 => (index(), any_rights())
            .prop_map(|(dir, rights)| Operation::ChangeDir { dir, rights }),
        3 => (index(), offset(), 1..9000_usize)
            .prop_map(|(file, offset, len)| Operation::Record { file, offset, len }),
    ]
}
