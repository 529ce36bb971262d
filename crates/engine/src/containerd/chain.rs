//! What chains of layers are called.

use blocks::Digest;
use sha2::{Digest as _, Sha256};

/// Returns what containerd calls the snapshot of each layer: the digest of all up to it (OCI image
/// specification, "Layer ChainID").
#[must_use]
pub fn chain_ids(diff_ids: &[Digest]) -> Vec<Digest> {
    let mut chain: Option<Digest> = None;
    diff_ids
        .iter()
        .map(|diff_id| {
            let next = chain.map_or(*diff_id, |chain| {
                let both = format!("{chain} {diff_id}");
                Digest(Sha256::digest(both).into())
            });
            chain = Some(next);
            next
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From a containerd that had unpacked an image of three layers.
    #[test]
    fn chains_have_containerds_names() {
        let digest = |hex: &str| format!("sha256:{hex}").parse::<Digest>().unwrap();
        let layers = [
            digest("b86dfb50503d296c9e88f27af88af2d4a03e36540f99f8159315b24199b025e6"),
            digest("5c149a18df288a8600983fac97b3ae49c1831a882c1560ecc75ed45082b6809d"),
            digest("f9994976b5f21f4e2dd9ba357de75af80bee986a25fdb0422390e4a2b14c1972"),
        ];
        let chains = [
            layers[0],
            digest("268634f32a728af957e71716cda5c0f1223992550c82783f235ac73724479af7"),
            digest("dda9b75757b7cae4916ba898e8d683d67aeb1c284797d1c385577d4457fbb022"),
        ];
        assert_eq!(chain_ids(&layers), chains);
        assert_eq!(chain_ids(&[]), []);
    }
}
