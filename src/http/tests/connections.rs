//! Sockets that close, stall or talk nonsense; addresses; the stop.

use tokio::net::UnixStream;

use super::*;
use crate::http::BindError;

/// A client that asks `body`, reads until it sees `until`, and goes: the receiver must be gone, too.
async fn check_goes_away(body: &str, events: &[Event], until: Option<&str>) {
    let mut running = start(Script::sending(events)).await;
    let mut stream = running.connect().await;
    stream.write_all(&chat_bytes(body.as_bytes(), "")).await.unwrap();
    let submission = running.next_submission().await;
    if let Some(until) = until {
        read_until(&mut stream, until).await;
    }
    assert!(!submission.events.is_closed());
    drop(stream);
    assert_dropped(&submission).await;
    running.assert_answers().await;
}

/// The receiver is gone, or soon will be; the limit only keeps a broken server from hanging the tests.
async fn assert_dropped(submission: &Submission) {
    let limit = Duration::from_secs(20);
    tokio::time::timeout(limit, submission.events.closed()).await.expect("the receiver is dropped with its client");
}

#[tokio::test]
async fn a_client_gone_before_admission_drops_its_receiver() {
    check_goes_away(GOOD, &[], None).await;
    check_goes_away(&streaming(GOOD), &[], None).await;
}

#[tokio::test]
async fn a_client_gone_while_its_prompt_is_computed_drops_its_receiver() {
    check_goes_away(GOOD, &[Event::Admitted(CACHE)], None).await;
    check_goes_away(&streaming(GOOD), &[Event::Admitted(CACHE)], Some("x-hob-cache")).await;
}

#[tokio::test]
async fn a_client_gone_during_the_answer_drops_its_receiver() {
    let events = [Event::Admitted(CACHE), Event::Text("The".into())];
    check_goes_away(GOOD, &events, None).await;
    check_goes_away(&streaming(GOOD), &events, Some("\"The\"")).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_gone_while_headers_are_out_before_admission_drops_its_receiver() {
    check_goes_away(&streaming(GOOD), &[], Some("text/event-stream")).await;
}

#[tokio::test]
async fn a_client_that_closes_its_side_for_writing_counts_as_gone() {
    let mut running = start(Script::silent()).await;
    let mut stream = running.connect().await;
    stream.write_all(&chat_bytes(GOOD.as_bytes(), "")).await.unwrap();
    let submission = running.next_submission().await;
    stream.shutdown().await.unwrap();
    assert_dropped(&submission).await;
    running.assert_answers().await;
}

#[tokio::test]
async fn a_body_cut_off_reaches_nobody() {
    let mut running = start(Script::default()).await;
    let mut stream = running.connect().await;
    let bytes = chat_bytes(GOOD.as_bytes(), "");
    stream.write_all(&bytes[..bytes.len() - 5]).await.unwrap();
    stream.shutdown().await.unwrap();
    read_to_end(&mut stream).await;
    assert!(running.submitted.try_recv().is_err());
    running.assert_answers().await;
}

#[tokio::test(start_paused = true)]
async fn headers_that_do_not_end_are_given_up() {
    let running = start(Script::default()).await;
    for bytes in ["", "POST /v1/chat/completions HTTP/1.1\r\nHost: l"] {
        let mut stream = running.connect().await;
        let connected = tokio::time::Instant::now();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        read_to_end(&mut stream).await;
        assert_eq!(connected.elapsed().as_secs(), 30);
        running.assert_answers().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_end_is_a_408() {
    let running = start(Script::default()).await;
    let bytes = chat_bytes(GOOD.as_bytes(), "Connection: close\r\n");
    assert_eq!(running.exchange(&bytes[..bytes.len() - 5]).await.status, 408);
    running.assert_answers().await;
}

#[tokio::test]
async fn too_many_header_bytes_are_a_431() {
    let running = start(Script::default()).await;
    let header = format!("Cookie: {}\r\n", "x".repeat(40_000));
    assert_eq!(running.exchange(&chat_bytes(GOOD.as_bytes(), &header)).await.status, 431);
    running.assert_answers().await;
}

#[tokio::test]
async fn garbage_is_a_400_or_the_end_also_after_a_good_request() {
    let running = start(Script::default()).await;
    assert_eq!(running.exchange(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n").await.status, 400);
    let good = chat_bytes(GOOD.as_bytes(), "");
    let text = {
        let mut stream = running.connect().await;
        stream.write_all(&[&good[..], b"\x00\xff garbage\r\n\r\n"].concat()).await.unwrap();
        String::from_utf8(read_to_end(&mut stream).await).unwrap()
    };
    assert!(text.starts_with("HTTP/1.1 200 OK") && text.contains("HTTP/1.1 400"), "{text}");
    running.assert_answers().await;
}

#[tokio::test]
async fn requests_follow_each_other_on_one_connection() {
    let running = start(Script::default()).await;
    let mut stream = running.connect().await;
    for _ in 0..3 {
        stream.write_all(&chat_bytes(GOOD.as_bytes(), "")).await.unwrap();
        read_until(&mut stream, "decode_ms").await;
    }
}

#[tokio::test]
async fn a_port_in_use_is_an_error_that_names_it() {
    let running = start(Script::default()).await;
    let error = Server::bind(&config(Listen::Tcp(running.address))).await.err().unwrap();
    let address = running.address;
    let expected = format!("{address} is in use by another program: stop that one, or change server.listen");
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn a_unix_socket_replaces_a_dead_one_but_not_a_living_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hob.sock");
    // Std's listener leaves its file behind, as a killed daemon does.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = Server::bind(&unix_config(&path)).await.unwrap();
    let again = Server::bind(&unix_config(&path)).await.err().unwrap();
    assert!(matches!(again, BindError::InUse { .. }), "{again}");

    let mut running = serve(server, ([127, 0, 0, 1], 0).into(), Script::default());
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream.write_all(&chat_bytes(GOOD.as_bytes(), "Connection: close\r\n")).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(Reply::parse(&bytes).status, 200);
    assert_eq!(running.next_submission().await.label.client, "unix");

    running.stop();
    running.served.await.unwrap();
    assert!(!path.exists());
}

#[tokio::test]
async fn a_file_that_is_no_socket_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    std::fs::write(&path, "milk").unwrap();
    assert!(Server::bind(&unix_config(&path)).await.is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "milk");
}

#[tokio::test(start_paused = true)]
async fn the_stop_lets_a_running_stream_finish() {
    let mut running = start(Script::silent()).await;
    // Neither an idle connection nor one that never spoke holds up the stop.
    let _silent = running.connect().await;
    let mut idle = running.connect().await;
    idle.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    read_until(&mut idle, "ok").await;

    let mut stream = running.connect().await;
    stream.write_all(&chat_bytes(streaming(GOOD).as_bytes(), "")).await.unwrap();
    let submission = running.next_submission().await;
    submission.events.send(Event::Admitted(CACHE)).await.unwrap();
    read_until(&mut stream, "x-hob-cache").await;
    running.stop();
    let stopped = tokio::time::Instant::now();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(TcpStream::connect(running.address).await.is_err());
    for event in [Event::Text("off".into()), Event::Done(done(Finish::Stop))] {
        submission.events.send(event).await.unwrap();
    }
    let text = String::from_utf8(read_to_end(&mut stream).await).unwrap();
    assert!(text.contains("[DONE]"), "{text}");
    running.served.await.unwrap();
    assert_eq!(stopped.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn the_stop_ends_what_runs_for_longer_than_ten_seconds() {
    let mut running = start(Script::silent()).await;
    let mut streamed = running.connect().await;
    streamed.write_all(&chat_bytes(streaming(GOOD).as_bytes(), "")).await.unwrap();
    let streamed_submission = running.next_submission().await;
    streamed_submission.events.send(Event::Admitted(CACHE)).await.unwrap();
    read_until(&mut streamed, "x-hob-cache").await;
    let mut whole = running.connect().await;
    whole.write_all(&chat_bytes(GOOD.as_bytes(), "")).await.unwrap();
    let whole_submission = running.next_submission().await;

    running.stop();
    let stopped = tokio::time::Instant::now();
    let streamed = String::from_utf8(read_to_end(&mut streamed).await).unwrap();
    assert!(streamed.contains("shutting down") && !streamed.contains("[DONE]"), "{streamed}");
    assert_eq!(Reply::parse(&read_to_end(&mut whole).await).status, 503);
    running.served.await.unwrap();
    assert!(stopped.elapsed() <= Duration::from_secs(10));
    assert!(streamed_submission.events.is_closed() && whole_submission.events.is_closed());
}
