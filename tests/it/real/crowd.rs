//! Twelve conversations, each with a word that nobody else has, in cells with room for four: what leaves the cells and comes back
//! is the conversation's own, and nothing is computed twice. On q8_0 K/V, where any company gives the same bits.

use hob::engine::{KvType, Model, Special};
use hob::request::{Event, Token};
use tokio::sync::mpsc;

use super::house::{ALICE, House, Setup, answer, prompt, smollm2};
use super::recording::Row;
use super::solo::assert_rows_equal_solo;

const WORDS: [&str; 12] = [
    "walnut", "copper", "violin", "lemon", "granite", "falcon", "velvet", "ginger", "marble", "saddle", "lantern",
    "pepper",
];

/// Of each conversation in round one.
const N_OWN: usize = 110;
const N_SAID: usize = 8;

fn tokens(text: &str) -> Vec<Token> {
    smollm2().vocab().tokenize(text, Special::Text)
}

/// `n` tokens that end in a question whose answer is `word`.
fn first_turn(word: &str, n: usize) -> Vec<Token> {
    let question = tokens(" What is the word? The word is");
    let mut turn = tokens(&format!("The word is {word}. ").repeat(n));
    turn.truncate(n - question.len());
    turn.extend(question);
    turn
}

fn foreign_words<'a>(said: &'a str, own: &'a str) -> impl Iterator<Item = &'static str> + 'a {
    WORDS.into_iter().filter(move |&word| word != own && said.contains(word))
}

#[test]
fn twelve_conversations_with_room_for_four_stay_apart_and_compute_only_what_is_new() {
    let setup = Setup { n_cells: 512, kv_type: KvType::Q8_0, ram: 64 << 20, ..Setup::default() };
    let house = House::of(smollm2(), setup);
    let mut histories: Vec<Vec<Token>> = WORDS.iter().map(|word| first_turn(word, N_OWN)).collect();
    let ask_all = |histories: &[Vec<Token>]| -> Vec<mpsc::Receiver<Event>> {
        histories.iter().map(|history| house.submit(ALICE, &prompt(&[history]), N_SAID)).collect()
    };

    for (index, pending) in ask_all(&histories).into_iter().enumerate() {
        let answer = answer(pending);
        assert!(answer.text.contains(WORDS[index]), "{} is not in {:?}", WORDS[index], answer.text);
        assert_eq!(foreign_words(&answer.text, WORDS[index]).next(), None, "{:?}", answer.text);
        histories[index].extend(&answer.done.generated);
    }
    let n_first = WORDS.len() * (N_OWN + N_SAID - 1);
    let n_common = n_common_beginnings(&histories);
    assert!((n_first - n_common..=n_first).contains(&house.log.n_computed()), "{}", house.log.n_computed());

    let n_before = house.log.n_computed();
    let again = tokens(" Say it again. The word is");
    histories.iter_mut().for_each(|history| history.extend(&again));
    let mut n_restored = 0;
    for (pending, word) in ask_all(&histories).into_iter().zip(WORDS) {
        let answer = answer(pending);
        assert!(answer.text.contains(word), "{word} is not in {:?}", answer.text);
        assert_eq!(foreign_words(&answer.text, word).next(), None, "{:?}", answer.text);
        // All but the last token that was said, which nobody computed, and the new turn.
        assert_eq!(answer.n_cached(), N_OWN + N_SAID - 1, "{word}: {:?}", answer.done.cache);
        n_restored += answer.done.cache.n_restored;
    }
    let n_each = 1 + again.len() + N_SAID - 1;
    assert_eq!(house.log.n_computed() - n_before, WORDS.len() * n_each);
    assert!(n_restored > 8 * N_OWN, "most had left the cells: {n_restored}");

    let is_second = |row: &Row| row.tokens.len() > N_OWN + N_SAID;
    assert_rows_equal_solo(smollm2(), KvType::Q8_0, house.log.rows().into_iter().filter(is_second).collect());
    house.rest();
}

/// Tokens that conversations begin with like one before them: who comes later may have them from there.
fn n_common_beginnings(histories: &[Vec<Token>]) -> usize {
    let common = |a: &[Token], b: &[Token]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let longest = |index: usize| (0..index).map(|other| common(&histories[other], &histories[index])).max();
    (1..histories.len()).filter_map(longest).sum()
}
