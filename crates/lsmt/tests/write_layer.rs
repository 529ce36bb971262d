//! Layers that are written in one pass, in whatever order.

use std::sync::Arc;

use lsmt::{
    BlobOptions, Compression, LayerInfo, LsmtError, MemoryStorage, Stack, Wrapper, ZFileOptions,
    open_blob, open_turbo_blob, write_layer,
};

fn info() -> LayerInfo {
    LayerInfo {
        virtual_size: 64 << 20,
        ..LayerInfo::default()
    }
}

#[test]
fn data_that_came_in_any_order_is_where_it_was_said_to_be() {
    for (compression, wrapper) in [
        (Compression::None, Wrapper::None),
        (Compression::ZFile(ZFileOptions::default()), Wrapper::Tar),
    ] {
        let options = BlobOptions {
            compression,
            wrapper,
        };
        let storage = MemoryStorage::default();
        let long = vec![3; 20 << 20];
        let written = write_layer::<LsmtError>(&storage, options, &info(), |body| {
            body.append(4096, &long)?;
            body.append((20 << 20) + 4096, &[4; 512])?;
            body.zeros(40 << 20, 10 << 20)?;
            // The superblock is known at the end.
            body.append(0, &[1; 4096])
        });
        assert_eq!(written.unwrap(), lsmt::ReadAt::size(&storage).unwrap());
        let layer = open_blob(Arc::new(storage)).unwrap();
        let stack = Stack::new(vec![layer]).unwrap();
        let mut device = vec![9; 64 << 20];
        stack.read_at(&mut device, 0).unwrap();
        assert!(device[..4096].iter().all(|byte| *byte == 1));
        assert!(device[4096..][..20 << 20] == long);
        assert!(
            device[(20 << 20) + 4096..][..512]
                .iter()
                .all(|byte| *byte == 4)
        );
        assert!(device[(20 << 20) + 4608..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_layer_refers_to_a_tar() {
    let tar: Vec<u8> = (0..40_000_u32).flat_map(u32::to_le_bytes).collect();
    let long = vec![7; 20 << 20];
    let tar = [&tar[..], &long].concat();
    let options = BlobOptions {
        compression: Compression::ZFile(ZFileOptions::default()),
        wrapper: Wrapper::None,
    };
    let storage = MemoryStorage::default();
    write_layer::<LsmtError>(&storage, options, &info(), |body| {
        body.refer(8192, 1024, 512)?;
        body.append(4096, &[1; 4096])?;
        // More than one segment has.
        body.refer(1 << 20, 20 << 20, 159_744)
    })
    .unwrap();
    let tar = Arc::new(MemoryStorage::new(tar));
    let layer = open_turbo_blob(Arc::new(storage), tar.clone()).unwrap();
    assert_eq!(layer.segments().count(), 5);
    let stack = Stack::new(vec![layer]).unwrap();
    let mut device = vec![9; 64 << 20];
    stack.read_at(&mut device, 0).unwrap();
    let tar = tar.bytes();
    assert!(device[..4096].iter().all(|byte| *byte == 0));
    assert!(device[4096..8192].iter().all(|byte| *byte == 1));
    assert!(device[8192..9216] == tar[512..1536]);
    assert!(device[9216..1 << 20].iter().all(|byte| *byte == 0));
    assert!(device[1 << 20..][..20 << 20] == tar[159_744..][..20 << 20]);
    assert!(device[21 << 20..].iter().all(|byte| *byte == 0));
}

#[test]
fn data_over_data_or_past_the_end_is_refused() {
    let refused = |fill: &dyn Fn(&mut lsmt::LayerBody<'_>) -> lsmt::Result<()>| {
        let storage = MemoryStorage::default();
        let written = write_layer(&storage, BlobOptions::default(), &info(), |body| fill(body));
        written.unwrap_err().to_string()
    };
    let over = refused(&|body| {
        body.append(0, &[1; 8192])?;
        body.append(4096, &[1; 512])
    });
    assert!(over.contains("lies over other data"), "{over}");
    let past = refused(&|body| body.append((64 << 20) - 512, &[1; 1024]));
    assert!(past.contains("past the end"), "{past}");
    let part = refused(&|body| body.append(0, &[1; 100]));
    let part_of_tar = refused(&|body| body.refer(0, 512, 100));
    assert!(part_of_tar.contains("whole sectors"), "{part_of_tar}");
    assert!(part.contains("whole sectors"), "{part}");
}
