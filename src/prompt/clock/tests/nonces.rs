//! What is a per-request token, and what might be the household's.

use super::super::{Volatile, parts};
use super::{NOW, check, check_parts};

#[test]
fn a_per_request_token_is_a_nonce() {
    for line in [
        "x-anthropic-billing-header: cc_version=2.1.36; cc_entrypoint=cli; cch=a1b2c;",
        "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=eb6c6;",
        "x-anthropic-billing-header: cc_version=2.1.37.fbe; cc_entrypoint=sdk-ts; cch=00000; cc_workload=cron;",
        "X-Anthropic-Billing-Header: cc_version=3; cch=a1b2c",
        "request id: 0f8fad5b-d9cb-469f-a165-70867728950e",
        "- Request ID: `0F8FAD5B-D9CB-469F-A165-70867728950E`",
        "session: 0f8fad5b-d9cb-469f-a165-70867728950e",
        "Session-ID = 4f3a9c01b2d7e6f8",
        "\"trace_id\": \"4bf92f3577b34da6a3ce929d0e0e4736\",",
        "<request_id>01ARZ3NDEKTSV4RRFFQ69G5FAV</request_id>",
        "| Correlation ID | 0f8fad5b-d9cb-469f-a165-70867728950e |",
        "requestId: req_011CSHoEeqs5C35K2UUqR7Fy",
        "nonce: q7Zt1Lx0Pz9aVb3Kc5==",
        "X-Request-Id: 4f3a9c01b2d7e6f8a1",
        "Sitzungs-ID: 0f8fad5b-d9cb-469f-a165-70867728950e",
        "ID запроса: 0f8fad5b-d9cb-469f-a165-70867728950e",
        "0f8fad5b-d9cb-469f-a165-70867728950e",
        "4bf92f3577b34da6a3ce929d0e0e4736",
        // Made at NOW.
        "01M8Q116TG7Q8M2D4W6X8Z0A1B",
    ] {
        check(line, Some(Volatile::Nonce));
    }
}

#[test]
fn what_might_be_the_households_is_no_nonce() {
    for line in [
        "Serial: 4f3a9c01b2d7e6f8",
        "Serial number: 0f8fad5b-d9cb-469f-a165-70867728950e",
        "id: 0f8fad5b-d9cb-469f-a165-70867728950e",
        "Device ID: 4f3a9c01b2d7e6f8",
        "- 0f8fad5b-d9cb-469f-a165-70867728950e",
        "Wi-Fi password: q7Zt1Lx0Pz9aVb3Kc5",
        "q7Zt1Lx0Pz9aVb3Kc5",
        "4f3a9c01b2d7e6f8",
        "MAC: 00:1B:44:11:3A:B7",
        "00:1B:44:11:3A:B7",
        "DE89370400440532013000",
        "89370400440532013000",
        "The fix is in commit 9fceb02d0ae598e95dc970b74767f19372d61af8.",
        "9fceb02d0ae598e95dc970b74767f19372d61af8",
        "Session: yoga",
        "Session: Movie-Night-2026-December",
        "Session: MorningBriefing2026x",
        "Request: turn on the kitchen light",
        "request id: 17",
        "request id: 0f8fad5b-d9cb-469f-a165-70867728950e belongs to Anna",
        "The request id 0f8fad5b-d9cb-469f-a165-70867728950e failed.",
        "Turn 17",
        "Message #231",
        "x-anthropic-billing-header",
        "x-anthropic-billing-header: see the manual",
        "The line x-anthropic-billing-header: cch=a1b2c; changes with every request.",
        // Made in 2016.
        "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    ] {
        check(line, None);
        assert_eq!(parts(line, NOW), [], "{line:?}");
    }
}

#[test]
fn a_billing_header_joined_to_the_next_block_ends_at_its_fields() {
    check_parts(
        "x-anthropic-billing-header: cc_version=2.1.36; cc_entrypoint=cli; cch=defa0;You are a coding agent.",
        &["x-anthropic-billing-header: cc_version=2.1.36; cc_entrypoint=cli; cch=defa0;"],
    );
    check_parts("x-anthropic-billing-header: cch=defa0; You are.", &["x-anthropic-billing-header: cch=defa0; "]);
}
