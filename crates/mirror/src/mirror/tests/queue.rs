//! How many downloads wait.

use super::*;
use hyper::header::RETRY_AFTER;

#[tokio::test]
async fn downloads_that_would_wait_beyond_the_bound_are_refused() {
    let (dir, registry) = (tempfile::tempdir().unwrap(), Registry::start());
    let blobs = (0..=FILLS + FILLS_WAITING)
        .map(|number| registry.put_blob("app", number.to_string().as_bytes()));
    let mut blobs: Vec<_> = blobs.collect();
    let over = format!("docker.io/app/blobs/{}", blobs.pop().unwrap());
    let registries = vec![(registry.upstream("docker.io"), Access::All)];
    let mirror = mirror(dir.path(), registries);
    let places = u32::try_from(FILLS).unwrap();
    let busy = mirror.fills.acquire_many(places).await.unwrap();
    let asking = blobs.iter().map(|blob| {
        let (mirror, path) = (Arc::clone(&mirror), format!("docker.io/app/blobs/{blob}"));
        tokio::spawn(async move { get(&mirror, &path, None).await.0 })
    });
    let asking: Vec<_> = asking.collect();
    while mirror.blobs.growing_count() < blobs.len() {
        tokio::task::yield_now().await;
    }
    let request = Request::get(format!("/v2/{over}")).body(()).unwrap();
    let (_, _, reply) = mirror.answer([127, 0, 0, 1].into(), &request).await;
    assert_eq!(reply.status().as_u16(), 503);
    assert_eq!(reply.headers()[RETRY_AFTER], "5");
    assert_eq!(mirror.blobs.growing_count(), blobs.len());
    assert_eq!(registry.count("GET"), 0, "nothing was asked for");
    drop(busy);
    for asked in asking {
        assert_eq!(asked.await.unwrap(), 200);
    }
    assert_eq!(get(&mirror, &over, None).await.0, 200);
}
