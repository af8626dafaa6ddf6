//! Trouble below the cells: whatever happens to files and budgets, answers are the cold ones and the daemon goes on.

use std::fs;
use std::time::{Duration, SystemTime};

use super::*;

/// Too long for three of them to lie in the cells at once.
fn long(talk: usize) -> String {
    format!("Conversation {talk}: what did we plan for Friday, and who comes? ").repeat(9)
}

/// Four conversations that push each other out of the cells, and what of their second turns came back.
fn talk_in_turns(house: &House) -> usize {
    let mut talks: Vec<Talk> = (0..4).map(|_| Talk::default()).collect();
    for (number, talk) in talks.iter_mut().enumerate() {
        talk.ask(house, &long(number));
    }
    let second = talks.iter_mut().map(|talk| talk.ask(house, "And on Saturday?").n_cached);
    let n_cached = second.sum();
    house.await_rest();
    n_cached
}

fn start_with(state: &Path, cache: Lower) -> House {
    let setup =
        Setup { context: CONTEXT, profiles: profiles(), cache, state: Some(state.to_owned()), ..Setup::default() };
    House::start(Arc::new(model(Attention::Full)), setup)
}

#[test]
fn budgets_of_nothing_or_next_to_nothing_cost_time_only() {
    let plenty = 1 << 22;
    for (ram, disk) in [(0, 0), (0, plenty), (1 << 10, plenty), (20 << 10, 1 << 10), (0, 30 << 10)] {
        let state = tempfile::tempdir().unwrap();
        let house = start_with(state.path(), Lower { ram, disk });
        talk_in_turns(&house);
        let held = house.status().lower;
        assert!(held.ram <= ram && held.disk <= disk, "{held:?} of {ram} and {disk}");
        house.close();
    }
}

#[test]
fn a_disk_without_room_for_the_house_leaves_conversations_to_ram() {
    let state = tempfile::tempdir().unwrap();
    let house = start_with(state.path(), Lower { ram: 1 << 22, disk: 1 << 10 });
    talk_in_turns(&house);
    let status = house.status();
    assert!(status.lower.disk == 0 && status.lower.n_segments >= 4, "{:?}", status.lower);
    house.close();
}

#[test]
fn a_folder_that_vanishes_is_computed_and_made_again() {
    let (state, mut talk) = lived_in();
    let (house, _) = start(state.path());
    fs::remove_dir_all(state.path().join("kv")).unwrap();
    talk.ask(&house, "Thanks!");
    talk_in_turns(&house);
    house.close();
    assert!(!files(state.path()).is_empty(), "what was saved since then");
    let (house, _) = start(state.path());
    talk.ask(&house, "And on Sunday?");
    house.close();
}

#[test]
fn files_that_changed_their_names_are_not_believed() {
    let (state, mut talk) = lived_in();
    let (house, _) = start(state.path());
    let files = files(state.path());
    let aside = state.path().join("aside");
    for pair in files.chunks_exact(2) {
        fs::rename(&pair[0], &aside).unwrap();
        fs::rename(&pair[1], &pair[0]).unwrap();
        fs::rename(&aside, &pair[1]).unwrap();
    }
    let told = talk.ask(&house, "Thanks!");
    assert!(told.cache.contains("cause=restore_failed"), "{}", told.cache);
    house.await_rest();
    house.close();
}

#[test]
fn a_clock_that_went_back_makes_no_file_old() {
    let (state, mut talk) = lived_in();
    for path in files(state.path()) {
        let file = fs::OpenOptions::new().append(true).open(path).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(20 * 365 * 24 * 3600)).unwrap();
    }
    let (house, faults) = start(state.path());
    assert_eq!(faults.n_computed(), 0, "the pin came from its file");
    let told = talk.ask(&house, "Thanks!");
    assert!(told.n_prompt - told.n_cached <= 110, "{}", told.cache);
    house.close();
}

#[test]
fn clients_that_hang_up_while_they_are_restored_leave_nothing_behind() {
    let (state, mut talk) = lived_in();
    let (house, _) = start(state.path());
    for again in 0..8 {
        let messages: Vec<_> = talk.messages.iter().cloned().chain([Message::text(Role::User, "Thanks!")]).collect();
        let body = json!({ "model": "house", "messages": wire(&messages), "max_tokens": 24, "stream": true });
        let exchange = house.send(body.to_string());
        // Sooner or later after it was read: sometimes in the middle of a segment.
        let n_requests = |status: &hob::scheduler::Status| status.n_running + status.n_waiting;
        for _ in 0..again * 50 {
            if n_requests(&house.status()) > 0 {
                break;
            }
            std::thread::yield_now();
        }
        drop(exchange);
        house.await_rest();
        // Others push what came back out of the cells again.
        talk_in_turns(&house);
    }
    talk.ask(&house, "Thanks!");
    house.await_rest();
    house.close();
}

#[test]
fn a_second_daemon_on_the_same_folder_leaves_the_first_ones_files_alone() {
    let (state, mut talk) = lived_in();
    let (first, faults) = start(state.path());
    let before = files(state.path());
    let (second, _) = start(state.path());
    assert_eq!(second.status().lower_budgets.disk, 0, "it does without");
    talk_in_turns(&second);
    second.close();
    assert_eq!(files(state.path()), before);
    let told = talk.ask(&first, "Thanks!");
    assert!(told.cache.contains("cause=appended"), "{}", told.cache);
    assert!(faults.n_computed() < 200, "nothing was computed anew");
    first.close();
    let (third, faults) = start(state.path());
    assert_eq!(faults.n_computed(), 0, "the folder is free again");
    third.close();
}
