//! The images of a workload's earlier containers.

use std::collections::{BTreeSet, HashMap, VecDeque};

use nri::{Image, Pod};

/// The annotation of a pod that names its images, with commas between them.
const ANNOTATION: &str = "yolofs.warm";
/// Labels that all pods of one template have, with a value of their own.
const OF_TEMPLATE: [&str; 4] = [
    "pod-template-hash",
    "controller-revision-hash",
    "batch.kubernetes.io/job-name",
    "job-name",
];
/// Most workloads that are remembered: those of a node, many times over.
const WORKLOADS_MAX: usize = 1024;
/// Most images of one workload, and most bytes of a name.
const IMAGES_MAX: usize = 32;
const NAME_MAX: usize = 512;

/// The images of workloads, the latest workload last.
#[derive(Debug, Default)]
pub(super) struct SeenImages {
    images: HashMap<String, BTreeSet<String>>,
    order: VecDeque<String>,
}

impl SeenImages {
    /// Returns the predicted images of a pod's containers.
    pub(super) fn images_of(&self, pod: &Pod) -> Vec<String> {
        if let Some(named) = pod.annotations.get(ANNOTATION) {
            let names = named.split(',').map(str::trim);
            let names = names.filter(|name| is_sane(name));
            return names.take(IMAGES_MAX).map(str::to_owned).collect();
        }
        let images = self.images.get(&workload(pod)).into_iter().flatten();
        images.cloned().collect()
    }

    /// Records the image of a pod's container.
    pub(super) fn note(&mut self, pod: &Pod, image: &Image) {
        // The configuration is the image, whatever it is called at the moment.
        let mut names = [&image.config_digest, &image.digest, &image.name].into_iter();
        let Some(name) = names.find(|name| is_sane(name)) else {
            return;
        };
        let workload = workload(pod);
        if !self.images.contains_key(&workload) {
            if self.order.len() == WORKLOADS_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.images.remove(&oldest);
            }
            self.order.push_back(workload.clone());
        }
        let images = self.images.entry(workload).or_default();
        if images.len() < IMAGES_MAX {
            images.insert(name.clone());
        }
    }
}

fn is_sane(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX
}

/// Returns what all pods of one template share; a pod without a template is one by itself.
fn workload(pod: &Pod) -> String {
    let label = OF_TEMPLATE
        .iter()
        .find_map(|label| Some((*label, pod.labels.get(*label)?)));
    match label {
        Some((label, value)) => format!("{}/{label}={value}", pod.namespace),
        None => format!("{}/{}", pod.namespace, pod.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, labels: &[(&str, &str)]) -> Pod {
        let labels = labels.iter();
        Pod {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            labels: labels
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            ..Pod::default()
        }
    }

    fn image(name: &str) -> Image {
        Image {
            name: name.to_owned(),
            ..Image::default()
        }
    }

    #[test]
    fn pods_of_a_template_have_the_same_images() {
        let mut seen = SeenImages::default();
        let template = [("pod-template-hash", "7c5ddbdf54")];
        seen.note(&pod("web-7c5ddbdf54-aaaaa", &template), &image("nginx"));
        seen.note(&pod("web-7c5ddbdf54-aaaaa", &template), &image("sidecar"));
        seen.note(&pod("alone", &[]), &image("redis"));
        let later = pod("web-7c5ddbdf54-bbbbb", &template);
        assert_eq!(seen.images_of(&later), ["nginx", "sidecar"]);
        assert_eq!(seen.images_of(&pod("alone", &[])), ["redis"]);
        let newer = pod(
            "web-5d59d67564-ccccc",
            &[("pod-template-hash", "5d59d67564")],
        );
        assert!(seen.images_of(&newer).is_empty(), "of another template");
    }

    #[test]
    fn an_annotation_says_more_than_the_past() {
        let mut seen = SeenImages::default();
        let mut annotated = pod("web", &[]);
        seen.note(&annotated, &image("nginx"));
        let names = format!("one, two,,{}", "x".repeat(NAME_MAX + 1));
        annotated.annotations.insert(ANNOTATION.to_owned(), names);
        assert_eq!(seen.images_of(&annotated), ["one", "two"]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut seen = SeenImages::default();
        for number in 0..=WORKLOADS_MAX {
            seen.note(&pod(&number.to_string(), &[]), &image("x"));
        }
        assert!(seen.images_of(&pod("0", &[])).is_empty(), "the oldest goes");
        assert_eq!(seen.images_of(&pod("1", &[])), ["x"]);
        assert_eq!(seen.order.len(), seen.images.len());
        for number in 0..2 * IMAGES_MAX {
            seen.note(&pod("1", &[]), &image(&number.to_string()));
        }
        assert_eq!(seen.images_of(&pod("1", &[])).len(), IMAGES_MAX);
        seen.note(&pod("new", &[]), &image(""));
        assert!(seen.images_of(&pod("new", &[])).is_empty());
    }
}
