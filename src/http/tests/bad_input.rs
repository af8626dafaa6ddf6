//! What bad requests get: a 4xx that says why, before any work; the next good request is answered.

use super::*;

/// Sends `body`; expects `status`, `code` and `param`, nothing submitted, and a living server.
async fn check(body: impl AsRef<[u8]>, status: u16, code: Option<&str>, param: Option<&str>) -> String {
    let mut running = start(Script::default()).await;
    let reply = running.post(body).await;
    assert_eq!(reply.status, status, "{}", reply.body);
    assert!(reply.header("x-request-id").is_some(), "{}", reply.head);
    let error = &reply.json()["error"];
    assert_eq!((error["code"].as_str(), error["param"].as_str()), (code, param), "{error}");
    assert_eq!(error["type"], "invalid_request_error");
    assert!(running.submitted.try_recv().is_err(), "a bad request reached the scheduler");
    running.assert_answers().await;
    error["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn malformed_json_is_a_400() {
    for body in ["", "{", "[]", "null", "{}}", r#"{"model":"house","messages":[}"#, "model=house", "\u{feff}{}"] {
        check(body, 400, None, None).await;
    }
}

#[tokio::test]
async fn invalid_utf8_is_a_400() {
    let message = check(b"{\"model\":\"h\xff\xfeuse\"}", 400, None, None).await;
    assert_eq!(message, "the body is not UTF-8 from byte 11 on");
}

#[tokio::test]
async fn a_wrong_type_names_its_field() {
    let body = r#"{"model":"house","messages":[{"role":"user","content":"a"},{"role":"user","content":5}]}"#;
    check(body, 400, None, Some("messages[1].content")).await;
}

#[tokio::test]
async fn no_messages_are_a_400() {
    check(r#"{"model":"house","messages":[]}"#, 400, None, Some("messages")).await;
    check(r#"{"model":"house"}"#, 400, None, Some("messages")).await;
}

#[tokio::test]
async fn an_unknown_model_is_a_404_that_lists_what_there_is() {
    let message = check(GOOD.replace("house", "gpt-9"), 404, Some("model_not_found"), Some("model")).await;
    assert_eq!(message, "model `gpt-9` is not here; there are: house, smol");
}

#[tokio::test]
async fn a_depth_bomb_is_a_400() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let bomb = format!("{}1{}", open.repeat(9_000), close.repeat(9_000));
        let message = check(format!(r#"{{"tools":[{bomb}]}}"#), 400, None, None).await;
        assert_eq!(message, "the JSON is nested 9002 levels deep: at most 64 are allowed");
    }
    check("[".repeat(90_000), 400, None, None).await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_a_413() {
    let body = GOOD.replace("oven", &"x".repeat(MAX_BODY as usize));
    let message = check(&body, 413, Some("body_too_large"), None).await;
    assert_eq!(message, "the body is larger than 100000 bytes, which is server.max_body");
    // More than is read on for; the answer arrives all the same, or the connection ends, but the server lives.
    let running = start(Script::default()).await;
    let mut stream = running.connect().await;
    let _ = stream.write_all(&chat_bytes(&vec![b' '; 20 * MAX_BODY as usize], "")).await;
    running.assert_answers().await;
}

#[tokio::test]
async fn a_body_of_unknown_length_has_the_same_limit() {
    let running = start(Script::default()).await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    let size = MAX_BODY as usize + 1;
    let body = format!("{size:x}\r\n{}\r\n0\r\n\r\n", " ".repeat(size));
    assert_eq!(running.exchange(format!("{head}{body}").as_bytes()).await.status, 413);
}

#[tokio::test]
async fn a_prompt_that_does_not_fit_is_a_400_with_both_numbers() {
    for (n_prompt, status) in [(63, 200), (64, 400), (9_214, 400)] {
        let mut running = start(Script { n_prompt, ..Script::default() }).await;
        let reply = running.post(GOOD).await;
        assert_eq!(reply.status, status, "{}", reply.body);
        if status == 400 {
            let error = &reply.json()["error"];
            assert_eq!(error["code"], "context_length_exceeded");
            assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&n_prompt.into(), &64.into()));
            let message = error["message"].as_str().unwrap();
            assert!(message.starts_with(&format!("this prompt has {n_prompt} tokens, the context holds 64")));
            assert!(running.submitted.try_recv().is_err());
        }
    }
}

#[tokio::test]
async fn a_bias_for_a_token_beyond_the_vocabulary_is_a_400() {
    let body = |token: u32| GOOD.replacen('{', &format!(r#"{{"logit_bias":{{"{token}":1}},"#), 1);
    let message = check(body(1_000), 400, None, Some("logit_bias")).await;
    assert_eq!(message, "logit_bias: token 1000 is not in the vocabulary, which has 1000 tokens");
    assert_eq!(start(Script::default()).await.post(body(999)).await.status, 200);
}

#[tokio::test]
async fn unknown_routes_and_wrong_methods_are_json() {
    let running = start(Script::default()).await;
    let unknown = running.get("/v1/nothing").await;
    assert_eq!((unknown.status, unknown.json()["error"]["code"].as_str()), (404, Some("unknown_route")));
    let undecodable = running.get("/v1/models/%ff").await;
    assert_eq!((undecodable.status, undecodable.json()["error"]["code"].as_str()), (404, Some("unknown_route")));
    let wrong = running.get("/v1/chat/completions").await;
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("POST")));
    assert_eq!(wrong.json()["error"]["message"], "/v1/chat/completions does not take GET");
    for reply in [unknown, wrong] {
        assert!(reply.header("x-request-id").is_some());
    }
}

#[tokio::test]
async fn an_unknown_layout_is_a_400_that_names_the_header() {
    let mut running = start(Script::default()).await;
    for (value, shown) in [("fast", "\"fast\""), ("Safe", "\"Safe\""), ("", "\"\""), ("s\u{e4}fe", "\"s\\xc3\\xa4fe\"")]
    {
        let headers = format!("x-hob-layout: {value}\r\nConnection: close\r\n");
        let reply = running.exchange(&chat_bytes(GOOD.as_bytes(), &headers)).await;
        assert_eq!(reply.status, 400, "{}", reply.body);
        let error = &reply.json()["error"];
        assert_eq!(error["param"], "x-hob-layout");
        let message = format!("x-hob-layout: {shown}: must be one of off, observe, safe, optimise");
        assert_eq!(error["message"].as_str().unwrap(), message);
    }
    assert!(running.planned.try_recv().is_err(), "a bad request reached the planner");
    running.assert_answers().await;
}
