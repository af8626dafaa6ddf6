//! Reads a request's body under a limit of size and time.

use std::time::Duration;

use axum::body::Body;
use futures_util::StreamExt;

use super::error::ApiError;

/// Time for a whole body to arrive: 8 MiB over a poor radio link (2 Mbit/s) need 34 s.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// The whole body, at most `max` bytes.
///
/// A body that is too large is read on for as much again and thrown away: a client that is still sending would have its
/// connection reset otherwise, and never see the answer that says why.
pub(super) async fn read(body: Body, max: u64) -> Result<Vec<u8>, ApiError> {
    tokio::time::timeout(READ_WITHIN, read_all(body, max))
        .await
        .unwrap_or_else(|_| Err(ApiError::body_too_slow(READ_WITHIN)))
}

async fn read_all(body: Body, max: u64) -> Result<Vec<u8>, ApiError> {
    let mut pieces = body.into_data_stream();
    let mut bytes = Vec::new();
    let mut n_read = 0;
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| ApiError::body(format!("the body ended early: {error}")))?;
        n_read += piece.len() as u64;
        if n_read <= max {
            bytes.extend_from_slice(&piece);
        } else {
            bytes = Vec::new();
        }
        if n_read > max.saturating_mul(2) {
            break;
        }
    }
    if n_read > max { Err(ApiError::body_too_large(max)) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;

    use super::*;

    fn pieces(n_pieces: usize) -> Body {
        Body::from_stream(stream::iter((0..n_pieces).map(|_| Ok::<_, Infallible>(vec![b'x'; 10]))))
    }

    #[tokio::test]
    async fn a_body_of_just_the_limit_is_read_and_one_byte_more_is_refused() {
        assert_eq!(read(pieces(10), 100).await.unwrap().len(), 100);
        assert_eq!(read(pieces(10), 99).await.unwrap_err(), ApiError::body_too_large(99));
    }

    #[tokio::test]
    async fn an_endless_body_is_given_up() {
        let endless = Body::from_stream(stream::repeat_with(|| Ok::<_, Infallible>(vec![b'x'; 10])));
        assert_eq!(read(endless, 100).await.unwrap_err().status, 413);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_arriving_is_given_up() {
        let body = Body::from_stream(stream::iter([Ok::<_, Infallible>("{")]).chain(stream::pending()));
        assert_eq!(read(body, 100).await.unwrap_err().status, 408);
    }
}
