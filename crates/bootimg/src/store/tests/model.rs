//! The store against a model, by random operations.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    Add(u64, usize),
    Remove(u64),
    Pin(u64),
    Unpin(u64),
    Gc,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (0u64..4, 0usize..3).prop_map(|(image, name)| Op::Add(image, name)),
        2 => (0u64..4).prop_map(Op::Remove),
        1 => (0u64..4).prop_map(Op::Pin),
        1 => (0u64..4).prop_map(Op::Unpin),
        2 => Just(Op::Gc),
    ];
    prop::collection::vec(op, 1..14)
}

/// What a store should hold: names and pins of each image that is there.
#[derive(Debug, Default)]
struct Model {
    images: BTreeMap<u64, (BTreeSet<usize>, bool)>,
}

impl Model {
    fn add(&mut self, image: u64, name: usize) {
        for (names, _) in self.images.values_mut() {
            names.remove(&name);
        }
        self.images.entry(image).or_default().0.insert(name);
        self.gc();
    }

    fn gc(&mut self) {
        self.images
            .retain(|_, (names, pinned)| !names.is_empty() || *pinned);
    }
}

/// What is shared is in groups, and two images at least have each of them, all of it.
fn assert_groups(list: &[StoredImage]) {
    let mut groups: BTreeMap<u64, Vec<SharedGroup>> = BTreeMap::new();
    for image in list {
        let bytes: u64 = image.groups.iter().map(|group| group.bytes).sum();
        assert_eq!(bytes, image.shared_bytes);
        for group in &image.groups {
            groups.entry(group.number).or_default().push(*group);
        }
    }
    for same in groups.values() {
        assert!(same.len() > 1 && same.iter().all(|group| *group == same[0]));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn does_what_the_model_does(ops in ops()) {
        let (_dir, store) = fresh();
        let samples: Vec<_> = (0..4).map(Sample::other).collect();
        let images: Vec<_> = samples.iter().map(Sample::image).collect();
        let number = |id| (0..).zip(&images).find(|(_, i)| i.info().id == id).map(|(n, _)| n);
        let mut model = Model::default();
        for op in ops {
            let id = |image: u64| images[usize::try_from(image).unwrap()].info().id;
            match op {
                Op::Add(image, name) => {
                    let name_text = format!("name-{name}");
                    let image_file = &images[usize::try_from(image).unwrap()];
                    store.add(image_file, Some(&name_text), &mut unwatched).unwrap();
                    model.add(image, name);
                }
                Op::Remove(image) => {
                    let there = model.images.remove(&image).is_some();
                    prop_assert_eq!(store.remove(&id(image)).is_ok(), there);
                }
                Op::Pin(image) => {
                    let there = model.images.get_mut(&image).map(|i| i.1 = true).is_some();
                    prop_assert_eq!(store.pin(&id(image)).is_ok(), there);
                }
                Op::Unpin(image) => {
                    let there = model.images.get_mut(&image).map(|i| i.1 = false).is_some();
                    prop_assert_eq!(store.unpin(&id(image)).is_ok(), there);
                }
                Op::Gc => {
                    store.gc(GcMode::Apply).unwrap();
                    model.gc();
                }
            }
            let list = store.list().unwrap();
            assert_groups(&list);
            let listed: BTreeMap<_, _> = list
                .into_iter()
                .map(|image| (number(image.info.id).unwrap(), (image.names, image.pinned)))
                .collect();
            let want: BTreeMap<u64, _> = model
                .images
                .iter()
                .map(|(image, (names, pinned))| {
                    let names: Vec<_> = names.iter().map(|name| format!("name-{name}")).collect();
                    (*image, (names, *pinned))
                })
                .collect();
            prop_assert_eq!(&listed, &want);
            for image in want.keys() {
                let sample = &samples[usize::try_from(*image).unwrap()];
                assert_right(&store, &id(*image), sample);
            }
        }
    }
}
