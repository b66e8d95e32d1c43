"""Authentication, from outside."""


def test_a_request_without_token_is_unauthorized(client):
    assert client.get("/orders").status_code == 401


def test_authentication_middleware_lets_known_tokens_through(client, token):
    response = client.get("/orders", headers={"authorization": f"Bearer {token}"})
    assert response.status_code == 200


def test_an_expired_session_is_refused(client, old_token):
    response = client.get("/orders", headers={"authorization": f"Bearer {old_token}"})
    assert response.status_code == 401
