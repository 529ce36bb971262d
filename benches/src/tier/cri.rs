//! One call of the CRI: a pull, as a kubelet asks for it. containerd unpacks layers while it still
//! downloads others then, which `ctr images pull` of containerd 1.6 does not.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use containerd_client::tonic::client::Grpc;
use containerd_client::tonic::codegen::http::uri::PathAndQuery;
use containerd_client::tonic::{Request, Status};
use tokio::time::timeout;
use tonic_prost::ProstCodec;

const METHOD: &str = "/runtime.v1.ImageService/PullImage";
/// A few hundred megabytes, stored by a disk of 150 requests a second.
const DEADLINE: Duration = Duration::from_secs(900);

#[derive(Clone, PartialEq, prost::Message)]
struct PullImageRequest {
    #[prost(message, optional, tag = "1")]
    image: Option<ImageSpec>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ImageSpec {
    #[prost(string, tag = "1")]
    image: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PullImageResponse {
    #[prost(string, tag = "1")]
    image_ref: String,
}

/// Has the containerd at this socket pull and unpack an image.
///
/// # Errors
/// If it does not, or not in time.
pub(super) fn pull(socket: &Path, image: &str) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting a runtime")?;
    let image = Some(ImageSpec {
        image: image.to_owned(),
    });
    let pulling = async {
        let channel = containerd_client::connect(socket).await?;
        let mut grpc = Grpc::new(channel);
        let ready = grpc.ready().await;
        ready.map_err(|error| Status::unavailable(error.to_string()))?;
        let request = Request::new(PullImageRequest { image });
        let (method, codec) = (PathAndQuery::from_static(METHOD), ProstCodec::default());
        let pulled: PullImageResponse = grpc.unary(request, method, codec).await?.into_inner();
        ensure!(
            pulled.image_ref.starts_with("sha256:"),
            "containerd names no image: {pulled:?}"
        );
        Ok(())
    };
    let pulled = runtime.block_on(async { timeout(DEADLINE, pulling).await });
    pulled.context("containerd takes too long")?
}
