//! What strangers try: over real sockets. Which keys open what is shown beside `access`.

use super::*;
use crate::request::Priority;

const KEY: &str = "hob-1";

async fn keyed() -> Running {
    let access = config::Access {
        origins: vec!["http://chat.local:3000".into()],
        clients: vec![config::ClientEntry::plain("phone".into(), config::KeyHash::of(KEY))],
        ..config::Access::default()
    };
    start_with(Script::default(), config::Server { access, ..config(Listen::Tcp(([127, 0, 0, 1], 0).into())) }).await
}

#[tokio::test]
async fn nobody_gets_in_without_a_key() {
    let mut running = keyed().await;
    let refused = running.post(GOOD).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (401, &"invalid_api_key".into()));
    let bytes = chat_bytes(GOOD.as_bytes(), &format!("Authorization: Bearer {KEY}\r\nConnection: close\r\n"));
    assert_eq!(running.exchange(&bytes).await.status, 200);
    assert_eq!(running.next_submission().await.label.client, "phone");
    assert_eq!(running.get("/health").await.status, 200);
    assert_eq!(running.get("/ready").await.body, r#"{"status":"ready"}"#, "without a key no more than that");
    assert_eq!(running.get("/hob/v1/pins").await.status, 401);
}

#[tokio::test]
async fn a_page_is_let_in_by_its_origin_alone() {
    let running = keyed().await;
    let ask = async |method: &str, origin: &str| {
        let head = format!(
            "{method} /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n\r\n"
        );
        running.exchange(head.as_bytes()).await
    };
    let allowed = ask("GET", "http://chat.local:3000").await;
    assert_eq!((allowed.status, allowed.header("access-control-allow-origin")), (200, Some("http://chat.local:3000")));
    let preflight = ask("OPTIONS", "http://chat.local:3000").await;
    assert_eq!((preflight.status, preflight.header("vary")), (204, Some("origin")));
    for method in ["GET", "OPTIONS"] {
        let foreign = ask(method, "http://evil.example").await;
        assert_eq!((foreign.status, foreign.header("access-control-allow-origin")), (403, None));
    }
}

/// Two readings of where a request ends would let one request hide in another.
#[tokio::test]
async fn a_request_hides_in_no_other() {
    let running = start(Script::default()).await;
    let hidden = "GET /hob/v1/pins HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for headers in [
        "Content-Length: 4\r\nContent-Length: 60\r\n",
        "Content-Length: 4, 60\r\n",
        "Content-Length: +4\r\n",
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Content-Length : 4\r\n",
        " Content-Length: 4\r\n",
    ] {
        let bytes = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n0\r\n\r\n{hidden}");
        let mut stream = running.connect().await;
        stream.write_all(bytes.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answered = Vec::new();
        // A reset, with bytes of ours unread, is a refusal, too.
        let _ = stream.read_to_end(&mut answered).await;
        let answered = String::from_utf8_lossy(&answered).into_owned();
        assert!(!answered.contains("\"pins\""), "{headers:?}: {answered}");
    }
    running.assert_answers().await;
}

/// More than a process has descriptors for, in waves that say nothing.
#[tokio::test]
async fn ten_thousand_silent_connections_shut_nobody_out() {
    let running = start(Script::default()).await;
    for _ in 0..25 {
        let mut wave = Vec::new();
        for _ in 0..400 {
            wave.push(running.connect().await);
        }
        running.assert_answers().await;
    }
}

#[tokio::test]
async fn a_client_lowers_a_requests_priority_and_never_lifts_it_above_its_own() {
    let entry = config::ClientEntry::plain("scripts".into(), config::KeyHash::of(KEY));
    let clients = vec![config::ClientEntry { priority: Priority::Normal, ..entry }];
    let access = config::Access { clients, ..config::Access::default() };
    let listen = Listen::Tcp(([127, 0, 0, 1], 0).into());
    let mut running = start_with(Script::default(), config::Server { access, ..config(listen) }).await;
    for (header, expected) in [
        ("", Priority::Normal),
        ("X-Hob-Priority: interactive\r\n", Priority::Normal),
        ("X-Hob-Priority: normal\r\n", Priority::Normal),
        ("X-Hob-Priority: background\r\n", Priority::Background),
    ] {
        let headers = format!("Authorization: Bearer {KEY}\r\nConnection: close\r\n{header}");
        assert_eq!(running.exchange(&chat_bytes(GOOD.as_bytes(), &headers)).await.status, 200);
        assert_eq!(running.next_submission().await.priority, expected, "{header:?}");
    }
}
